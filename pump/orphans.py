"""Old pending prewrites: ask the other pumps whether the transaction is theirs, and tell people about the rest.

A prewrite can be durable here although its answer was lost, and then be written again to another pump, with its
commit. A commit served there settles our copy, which is then kept as a rolled back one. A rollback there says nothing
(correctness rule 5). Where timestamps are PD's, TiKV is asked about what no pump knows: it tells a commit or a
rollback, and ends a transaction whose lock has outlived its writer. What nobody knows stays pending until `binlogctl`
settles it; a TiDB's of which TiKV has no trace after a minute is rolled back there and here. One that began at or below
PD's GC safepoint is not, for the record of its commit may be removed: it stays pending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from binlog.cluster.node import NodeStatus, State
from binlog.cluster.registry import Registry
from binlog.cluster.tikv import BelowSafepoint, TiKV
from binlog.errors import BinlogError
from binlog.pb import pump_ext_pb2 as pb
from binlog.runtime.channel import open_channel
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage
from binlog.runtime.security import Security
from grpc import aio

from pump.pending import Pending
from pump.resolver import Timestamps
from pump.store import Store

INTERVAL_S = 5.0
ASK_TIMEOUT_S = 5.0
ASKED_MAX = 1000
SAY_INTERVAL_S = 60.0
SHOWN_MAX = 5
TIKV_ASKED_MAX = 100  # in one look, oldest first
# TiDB writes the primary key while it writes the prewrite here. One that comes after this long is refused by TiKV, for
# it has been told that the transaction is rolled back.
TRACE_WAIT_S = 60.0

_log = get_logger("pump.orphans")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The TiKV whose transactions these are, and what says the time there. `services`: whether a service that embeds
    the SDK writes to this cluster; TiKV knows nothing of its transactions, so that no trace there says nothing."""

    tikv: TiKV
    timestamps: Timestamps
    services: Callable[[], Awaitable[bool]]


class Orphans:
    """`run` for ever; `look` once."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        security: Security | None,
        *,
        node_id: str,
        cluster_id: int,
        age_s: float,
        upstream: Upstream | None = None,
        trace_wait_s: float = TRACE_WAIT_S,
    ) -> None:
        self._store = store
        self._upstream = upstream
        self._trace_wait_s = trace_wait_s
        self._registry = registry
        self._security = security
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._age_s = age_s
        self._said_s = float("-inf")
        self._silence = Outage(
            _log, "TiKV does not tell what became of old prewrites", "TiKV tells again", every_s=SAY_INTERVAL_S
        )

    async def run(self) -> None:
        outage = Outage(_log, "old prewrites could not be asked about", "old prewrites are asked about again")
        while True:
            await asyncio.sleep(min(INTERVAL_S, self._age_s))
            try:
                await self.look()
                outage.over()
            except BinlogError as error:
                outage.failed(error=error)

    async def look(self) -> int:
        """How many old prewrites are left."""
        old = self._store.pending_older_than(self._age_s)[:ASKED_MAX]
        if not old:
            return 0
        others = [
            record.status
            for record in (await self._registry.list("pumps")).nodes
            if record.status.node_id != self._node_id and record.status.state is not State.OFFLINE
        ]
        asked = [entry.start_ts for entry in old]
        answers = await asyncio.gather(*(self._ask(status, asked) for status in others))
        for status, commits in zip(others, answers, strict=True):
            for entry, commit_ts in zip(old, commits, strict=False):
                if commit_ts and self._store.is_pending(entry.start_ts):
                    await self._settle(entry, commit_ts, status)
        if self._upstream is not None:
            try:
                await self._ask_upstream(self._upstream, old)
                self._silence.over()
            except BinlogError as error:
                self._silence.failed(error=error)
        left = [entry for entry in old if self._store.is_pending(entry.start_ts)]
        self._say(left)
        return len(left)

    async def _ask(self, status: NodeStatus, start_ts: Sequence[int]) -> Sequence[int]:
        """Commit ts parallel to `start_ts`; empty if the pump does not answer."""
        channel = open_channel(status.host, self._security)
        try:
            request = pb.OutcomeReq(cluster_id=self._cluster_id, start_ts=start_ts)
            call: Any = channel.unary_unary("/binlog.ext.PumpExt/Outcome")
            answer = await call(request.SerializeToString(), timeout=ASK_TIMEOUT_S)
            return list(pb.OutcomeResp.FromString(answer).commit_ts)
        except aio.AioRpcError as error:
            _log.info("a pump does not tell outcomes", pump=status.node_id, code=error.code().name)
            return ()
        finally:
            await channel.close()

    async def _settle(self, entry: Pending, commit_ts: int, status: NodeStatus) -> None:
        _log.info(
            "a pending prewrite is a copy: its transaction is on another pump",
            start_ts=entry.start_ts,
            commit_ts=commit_ts,
            pump=status.node_id,
        )
        await self._store.settle(entry.start_ts, 0)

    async def _ask_upstream(self, upstream: Upstream, old: Sequence[Pending]) -> None:
        """Whether or not every pump has answered: what TiKV says is final, and a drainer counts a transaction that
        lies on two pumps once (rule 19)."""
        open_ones = [
            entry
            for entry in old
            if entry.prewrite_key
            and not entry.writer  # TiKV knows nothing of a service's: pump.expired ends those
            and not entry.safepoint_ts
            and self._store.is_pending(entry.start_ts)
        ]
        if not open_ones:
            return
        now_ts, services = await upstream.timestamps.get(), await upstream.services()
        for entry in open_ones[:TIKV_ASKED_MAX]:
            await self._ask_tikv(upstream.tikv, entry, now_ts=now_ts, services=services)

    async def _ask_tikv(self, tikv: TiKV, entry: Pending, *, now_ts: int, services: bool) -> None:
        age_s = time.monotonic() - entry.since_s
        give_up = age_s > self._trace_wait_s and not services
        try:
            commit_ts = await tikv.outcome(entry.prewrite_key, entry.start_ts, now_ts=now_ts, give_up=give_up)
        except BelowSafepoint as error:
            entry.safepoint_ts = error.safepoint_ts
            self._said_s = float("-inf")
            return
        if commit_ts is not None and self._store.is_pending(entry.start_ts):
            _log.info(
                "TiKV tells what became of a pending prewrite",
                start_ts=entry.start_ts,
                commit_ts=commit_ts,
                outcome="committed" if commit_ts else "rolled back",
                ddl_job_id=entry.ddl_job_id,
                age_s=int(age_s),
            )
            await self._store.settle(entry.start_ts, commit_ts)

    def _say(self, left: Sequence[Pending]) -> None:
        now_s = time.monotonic()
        if not left or now_s - self._said_s < SAY_INTERVAL_S:
            return
        self._said_s = now_s
        _log.warning(
            "prewrites are pending for long and hold the resolved ts back; binlogctl settle ends one",
            count=len(left),
            oldest=[f"{e.start_ts} for {int(now_s - e.since_s)} s" for e in left[:SHOWN_MAX]],
        )
        forgotten = [entry for entry in left if entry.safepoint_ts]
        if forgotten:
            _log.error(
                "TiKV no longer tells what became of prewrites that began at or below PD's GC safepoint. Look upstream"
                " whether their rows are there, then end each: binlogctl settle -start-ts N -commit-ts M, or -rollback",
                count=len(forgotten),
                start_ts=[entry.start_ts for entry in forgotten[:SHOWN_MAX]],
                safepoint_ts=max(entry.safepoint_ts for entry in forgotten),
            )
