"""Settles pending prewrites of SDK writers whose etcd lease has expired (correctness rule 24: writers hold leases).

A prewrite of the SDK names its writer; see cluster/writers.py. Once that writer's etcd key is absent, the prewrite is
rolled back here. A DDL prewrite is committed if its job is published, else rolled back: without the key the job cannot
be published any more. If the writer was only suspended and sends its commit at the same moment, the matcher accepts
whichever comes first and refuses the other. While etcd does not answer, nothing is rolled back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from binlog.cluster.etcd import Etcd
from binlog.cluster.published_jobs import PublishedJobs
from binlog.cluster.writers import living_writers
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.errors import Conflict, NoSuchBinlog
from pump.store.gauges import EXPIRED_WRITERS
from pump.store.pending import Pending
from pump.store.store import Store

POLL_INTERVAL_S = 0.5
AGE_S = 0.5  # a younger prewrite is probably being committed; checking it would cost an etcd read per transaction
SETTLED_AT_ONCE_MAX = 1000
SHOWN_MAX = 5

_log = get_logger("pump.tasks.expired_writers")


async def watch_writers(store: Store, etcd: Etcd) -> None:
    """Settle the prewrites of expired writers every POLL_INTERVAL_S seconds, until cancelled."""
    outage = Outage(
        _log, "prewrites whose writer may be gone stay pending", "the writers of pending prewrites are known again"
    )
    await outage.repeating(partial(settle_expired, store, etcd), POLL_INTERVAL_S, BinlogError)


async def settle_expired(store: Store, etcd: Etcd, *, age_s: float = AGE_S) -> int:
    """Settle the prewrites of expired writers. Return how many were settled. Raises EtcdError if the living writers
    cannot be read; then none is settled."""
    # Pending prewrites first, then the living writers: a writer registers before it sends its first prewrite.
    named = [entry for entry in store.pending.older_than(time.monotonic() - age_s) if entry.writer]
    if not named:
        return 0
    living = await living_writers(etcd)
    gone = [entry for entry in named if entry.writer not in living]
    if not gone:
        return 0
    # Read after the living writers: a job that is missing then cannot be published later.
    published = await PublishedJobs(etcd).finished(entry.ddl_job_id for entry in gone)
    settled: Counter[str] = Counter()
    for begin in range(0, len(gone), SETTLED_AT_ONCE_MAX):
        part = gone[begin : begin + SETTLED_AT_ONCE_MAX]  # concurrently, so that one log sync serves all
        settled.update(await asyncio.gather(*(_settle(store, entry, published) for entry in part)))
    _log_settled(gone, settled)
    return settled["committed"] + settled["rolled back"]


async def _settle(store: Store, entry: Pending, published: Mapping[int, int]) -> str:
    commit_ts = published.get(entry.ddl_job_id, 0) if entry.ddl_job_id else 0
    try:
        await store.writes.settle(entry.start_ts, commit_ts)
    except (NoSuchBinlog, Conflict):  # its commit or rollback arrived meanwhile
        return "settled meanwhile"
    outcome = "committed" if commit_ts else "rolled back"
    EXPIRED_WRITERS.labels(outcome).inc()
    return outcome


def _log_settled(gone: Sequence[Pending], settled: Counter[str]) -> None:
    by_writer = Counter(entry.writer.hex() for entry in gone)
    _log.warning(
        "the leases of writers expired; settling their pending prewrites",
        rolled_back=settled["rolled back"],
        committed_ddl=settled["committed"],
        settled_meanwhile=settled["settled meanwhile"],
        writers=[f"{writer} with {count}" for writer, count in by_writer.most_common(SHOWN_MAX)],
        start_ts=[entry.start_ts for entry in gone[:SHOWN_MAX]],
    )
