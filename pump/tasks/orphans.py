"""Settles pending prewrites that their writers do not: old ones, and those of SDK writers whose lease has expired.

A prewrite can be durable here although its answer was lost. The client then writes it to another pump, with its commit.
If another pump serves that commit, the copy here is rolled back. If timestamps come from PD, TiKV is queried, too
(correctness rule 5: clean-up rollbacks): it reports the outcome, and rolls back a transaction whose lock has outlived
its writer, or of which it has no trace after a minute. What nobody can answer stays pending until `binlogctl` settles
it.

A prewrite of the SDK names its writer; see cluster/writers.py. It is settled here once that writer's etcd key is absent
(correctness rule 24: writers hold leases).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from binlog.cluster.etcd import Etcd
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tikv import BelowSafepoint, TiKV
from binlog.cluster.timestamp import TimestampSource
from binlog.cluster.writers import PublishedJobs, living_writers
from binlog.errors import BinlogError
from binlog.pb import pump_ext_pb2 as pb
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.security import Security
from grpc import aio

from pump.errors import Conflict, NoSuchBinlog
from pump.metrics import EXPIRED_WRITERS, TIKV_ASKED
from pump.store.resolver import Pending
from pump.store.store import Store

INTERVAL_S = 5.0
ASK_TIMEOUT_S = 5.0
ASKED_MAX = 1000
SAY_INTERVAL_S = 60.0
SHOWN_MAX = 5
TIKV_ASKED_MAX = 100  # per round, oldest first
# TiDB writes the primary key to TiKV while it writes the prewrite here. If TiKV has no trace of the primary key after
# this time, the transaction is rolled back in TiKV, which then refuses the primary key if it still arrives.
TRACE_WAIT_S = 60.0
# Of SDK writers:
POLL_INTERVAL_S = 0.5
AGE_S = 0.5  # a younger prewrite is probably being committed; checking it would cost an etcd read per transaction
SETTLED_AT_ONCE_MAX = 1000

_log = get_logger("pump.tasks.orphans")


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


@dataclass(frozen=True, slots=True)
class Upstream:
    """The TiKV of the upstream cluster and its timestamp source. `services`: whether services that embed the SDK write
    to this cluster; TiKV does not know their transactions, so a missing record there proves nothing."""

    tikv: TiKV
    timestamps: TimestampSource
    services: Callable[[], Awaitable[bool]]


@dataclass(slots=True)
class Orphans:
    """`run` checks every INTERVAL_S seconds until cancelled; `poll` checks once."""

    store: Store
    registry: Registry
    security: Security | None
    node_id: str
    cluster_id: int
    age_s: float
    upstream: Upstream | None = None
    trace_wait_s: float = TRACE_WAIT_S
    _logged_s: float = float("-inf")
    _tikv_outage: Outage = field(
        default_factory=lambda: Outage(
            _log,
            "cannot get the outcome of old prewrites from TiKV",
            "TiKV reports the outcome of old prewrites again",
            every_s=SAY_INTERVAL_S,
        )
    )

    async def run(self) -> None:
        outage = Outage(
            _log, "cannot query the outcome of old prewrites", "the outcome of old prewrites is queried again"
        )
        await outage.repeating(self.poll, min(INTERVAL_S, self.age_s), BinlogError)

    async def poll(self) -> int:
        """Settle the old prewrites whose outcome is found. Return how many of them remain pending."""
        old = self.store.pending.older_than(time.monotonic() - self.age_s)[:ASKED_MAX]
        if not old:
            return 0
        others = [
            record.status
            for record in (await self.registry.list("pumps")).nodes
            if record.status.node_id != self.node_id and record.status.state is not State.OFFLINE
        ]
        asked = [entry.start_ts for entry in old]
        answers = await asyncio.gather(*(self._ask(status, asked) for status in others))
        for status, commits in zip(others, answers, strict=True):
            for entry, commit_ts in zip(old, commits, strict=False):
                if commit_ts and entry.start_ts in self.store.pending:
                    await self._settle(entry, commit_ts, status)
        if self.upstream is not None:
            with self._tikv_outage.catching(BinlogError):
                await self._ask_upstream(self.upstream, old)
        remaining = [entry for entry in old if entry.start_ts in self.store.pending]
        self._log_remaining(remaining)
        return len(remaining)

    async def _ask(self, status: NodeStatus, start_ts: Sequence[int]) -> Sequence[int]:
        """Query another pump for the commit_ts of each of `start_ts`: 0 if that pump has no commit. Return an empty
        sequence if the pump does not answer."""
        try:
            async with open_channel(status.host, self.security) as channel:
                request = pb.OutcomeReq(cluster_id=self.cluster_id, start_ts=start_ts)
                stub = stub_of(channel, pb.DESCRIPTOR, "PumpExt")
                return list((await stub.Outcome(request, timeout=ASK_TIMEOUT_S)).commit_ts)
        except aio.AioRpcError as error:
            _log.info("a pump does not report the outcome of prewrites", pump=status.node_id, code=error.code().name)
            return ()

    async def _settle(self, entry: Pending, commit_ts: int, status: NodeStatus) -> None:
        _log.info(
            "a pending prewrite is a copy: its transaction is on another pump",
            start_ts=entry.start_ts,
            commit_ts=commit_ts,
            pump=status.node_id,
        )
        await self.store.writes.settle(entry.start_ts, 0)

    async def _ask_upstream(self, upstream: Upstream, old: Sequence[Pending]) -> None:
        """Query TiKV, even if some pumps have not answered: TiKV's answer is final, and a drainer applies a transaction
        that two pumps hold only once (rule 19: one transaction on several pumps)."""
        open_ones = [
            entry
            for entry in old
            if entry.prewrite_key
            and not entry.writer  # a service's transaction, unknown to TiKV: pump.tasks.orphans settles it
            and not entry.safepoint_ts
            and entry.start_ts in self.store.pending
        ]
        if not open_ones:
            return
        now_ts, services = await upstream.timestamps.get(), await upstream.services()
        for entry in open_ones[:TIKV_ASKED_MAX]:
            await self._ask_tikv(upstream.tikv, entry, now_ts=now_ts, services=services)

    async def _ask_tikv(self, tikv: TiKV, entry: Pending, *, now_ts: int, services: bool) -> None:
        TIKV_ASKED.inc()
        age_s = time.monotonic() - entry.since_s
        give_up = age_s > self.trace_wait_s and not services
        try:
            commit_ts = await tikv.outcome(entry.prewrite_key, entry.start_ts, now_ts=now_ts, give_up=give_up)
        except BelowSafepoint as error:
            entry.safepoint_ts = error.safepoint_ts
            self._logged_s = float("-inf")
            return
        if commit_ts is not None and entry.start_ts in self.store.pending:
            _log.info(
                "outcome of a pending prewrite read from TiKV",
                start_ts=entry.start_ts,
                commit_ts=commit_ts,
                outcome="committed" if commit_ts else "rolled back",
                ddl_job_id=entry.ddl_job_id,
                age_s=int(age_s),
            )
            await self.store.writes.settle(entry.start_ts, commit_ts)

    def _log_remaining(self, remaining: Sequence[Pending]) -> None:
        now_s = time.monotonic()
        if not remaining or now_s - self._logged_s < SAY_INTERVAL_S:
            return
        self._logged_s = now_s
        _log.warning(
            "prewrites have been pending for long and hold the resolved ts back; settle them with binlogctl settle",
            count=len(remaining),
            oldest=[f"{e.start_ts} for {int(now_s - e.since_s)} s" for e in remaining[:SHOWN_MAX]],
        )
        undecidable = [entry for entry in remaining if entry.safepoint_ts]
        if undecidable:
            _log.error(
                "TiKV can no longer report the outcome of prewrites that began at or below PD's GC safepoint. Check "
                "upstream whether their rows exist, then settle each: binlogctl settle -start-ts N -commit-ts M, or "
                "-rollback",
                count=len(undecidable),
                start_ts=[entry.start_ts for entry in undecidable[:SHOWN_MAX]],
                safepoint_ts=max(entry.safepoint_ts for entry in undecidable),
            )
