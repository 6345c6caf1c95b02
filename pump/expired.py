"""Prewrites whose writer is gone: a service of the SDK whose lease in etcd has ended (correctness rule 24).

A prewrite of the SDK names its writer; see cluster/writers.py. Once that writer's key is absent, the prewrite is rolled
back here; of a DDL, the published job decides, which nobody can publish any more without that key. A writer that only
slept and sends its commit at that moment is answered by the matcher: one of the two comes first, and refuses the other.
While etcd does not answer, nothing is rolled back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from binlog.cluster.kv import Etcd
from binlog.cluster.published_jobs import PublishedJobs
from binlog.cluster.writers import living_writers
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.tidb.job import Job

from pump.errors import Conflict, NoSuchPrewrite
from pump.gauges import EXPIRED_WRITERS
from pump.pending import Pending
from pump.store import Store

LOOK_INTERVAL_S = 0.5
AGE_S = 0.5  # a younger prewrite is on its way: asking about it would cost etcd a read for every transaction
SETTLED_AT_ONCE_MAX = 1000
SAY_INTERVAL_S = 60.0
SHOWN_MAX = 5

_log = get_logger("pump.expired")


class ExpiredWriters:
    """`run` for ever; `look` once."""

    def __init__(self, store: Store, etcd: Etcd, *, age_s: float = AGE_S) -> None:
        self._store = store
        self._etcd = etcd
        self._jobs = PublishedJobs(etcd)
        self._age_s = age_s
        self._said_s = float("-inf")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.look()
            except BinlogError as error:
                self._say_failure(error)

    async def look(self) -> int:
        """How many prewrites were settled. EtcdError: it is not known whose writers are gone, and none was."""
        # First what is pending, then who lives: a writer is registered before its first prewrite is sent.
        named = [entry for entry in self._store.pending_older_than(self._age_s) if entry.writer]
        if not named:
            return 0
        living = await living_writers(self._etcd)
        gone = [entry for entry in named if entry.writer not in living]
        if not gone:
            return 0
        published = await self._published(gone)
        settled: Counter[str] = Counter()
        for begin in range(0, len(gone), SETTLED_AT_ONCE_MAX):
            part = gone[begin : begin + SETTLED_AT_ONCE_MAX]  # together: the log syncs once for all of them
            settled.update(await asyncio.gather(*(self._settle(entry, published) for entry in part)))
        self._say(gone, settled)
        return settled["committed"] + settled["rolled back"]

    async def _published(self, gone: Sequence[Pending]) -> Mapping[int, int]:
        """job id → FinishedTS of the published jobs. Read after the writers: what is not there now never will be."""
        if not any(entry.ddl_job_id for entry in gone):
            return {}
        jobs = [Job.from_json(text) for _, text in await self._jobs.all()]
        return {job.id: job.finished_ts for job in jobs}

    async def _settle(self, entry: Pending, published: Mapping[int, int]) -> str:
        commit_ts = published.get(entry.ddl_job_id, 0) if entry.ddl_job_id else 0
        try:
            await self._store.settle(entry.start_ts, commit_ts)
        except (NoSuchPrewrite, Conflict):  # its commit or rollback came in between
            return "ended by itself"
        outcome = "committed" if commit_ts else "rolled back"
        EXPIRED_WRITERS.labels(outcome).inc()
        return outcome

    def _say(self, gone: Sequence[Pending], settled: Counter[str]) -> None:
        by_writer = Counter(entry.writer.hex() for entry in gone)
        _log.warning(
            "the leases of writers have ended: their pending prewrites are settled",
            rolled_back=settled["rolled back"],
            committed_ddl=settled["committed"],
            ended_by_themselves=settled["ended by itself"],
            writers=[f"{writer} with {count}" for writer, count in by_writer.most_common(SHOWN_MAX)],
            start_ts=[entry.start_ts for entry in gone[:SHOWN_MAX]],
        )

    def _say_failure(self, error: BinlogError) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_INTERVAL_S:
            self._said_s = now_s
            _log.warning("prewrites whose writer may be gone stay pending", error=error)
