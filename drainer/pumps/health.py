"""State of each pump for the status page and the log, pumps that leave and rejoin, and the error of a watermark that
cannot advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from binlog.cluster.etcd import Etcd
from binlog.cluster.registry import ROOT, State
from binlog.errors import BinlogError, EtcdError
from binlog.pb.pump_ext_pb2 import InspectResp, PendingPrewrite
from binlog.runtime.log import Outage, get_logger

from drainer.pumps.client import Missed, PumpClient
from drainer.pumps.watermark import PumpMark, Watermark

# A pump is reported after it has not answered for this long.
AWAY_WARN_S = 3.0
# A prewrite pending for this long is logged, and again every PENDING_EVERY_S.
PENDING_WARN_MS = 30_000
HOLDS_MS = 5_000  # a prewrite pending for this long is reported as the cause of a lag
PENDING_EVERY_S = 60.0

_log = get_logger(__name__)


def _away() -> Outage:
    return Outage(
        _log,
        "a pump holds the watermark back",
        "pump answers again",
        quiet_s=AWAY_WARN_S,
        first="a pump does not answer",
    )


def _pending() -> Outage:
    return Outage(
        _log,
        "a pending prewrite holds the watermark back; settle it with `binlogctl settle`",
        "no prewrite holds the watermark back any more",
        every_s=PENDING_EVERY_S,
    )


class HeldBack(BinlogError):
    """The watermark cannot advance now. `node_id`: the pump that prevents it, '' if it is not a single pump."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(node_id, why)
        self.node_id = node_id
        self.why = why

    def __str__(self) -> str:
        return f"held back by pump {self.node_id}: {self.why}" if self.node_id else self.why


def held_by_prewrite(watermark: Watermark) -> tuple[HeldBack, float] | None:
    """Return the pending prewrite that holds the watermark back although every pump answers, and its age in seconds;
    None: none."""
    lowest = min(watermark.marks, key=lambda mark: mark.resolved_ts, default=None)
    if lowest is None or lowest.holding is None or lowest.holding.age_ms < HOLDS_MS:
        return None
    return HeldBack(lowest.node_id, _pending_text(lowest.holding)), lowest.holding.age_ms / 1000


def _pending_text(pending: PendingPrewrite) -> str:
    job = f" of DDL job {pending.ddl_job_id}" if pending.ddl_job_id else ""
    if pending.writer:
        return (
            f"its prewrite {pending.start_ts}{job} waits for the commit of writer {bytes(pending.writer).hex()}: the "
            "pump settles it when that writer's lease in etcd expires"
        )
    return (
        f"its prewrite {pending.start_ts}{job} waits for its commit; its writer holds no lease: if the writer is gone, "
        "settle the prewrite with `binlogctl settle`"
    )


@dataclass(slots=True)
class PumpView:
    """State of one pump for the status page. `down_since`: unix seconds of its first failed call; `left_ts`: position
    at which it stopped counting; `missed`: binlogs at or below the position that it held when it rejoined."""

    node_id: str
    host: str = ""
    state: State = State.OFFLINE
    counts: bool = False
    resolved_ts: int = 0
    error: str = ""
    down_since: float | None = None
    inspection: InspectResp | None = None
    left_ts: int | None = None
    missed: Missed = field(default_factory=Missed)
    away: Outage = field(default_factory=_away, repr=False)
    pending_long: Outage = field(default_factory=_pending, repr=False)


def report_late(view: PumpView, found: InspectResp) -> None:
    before = view.inspection.late_commit_count if view.inspection else 0
    if found.late_commit_count > before:
        _log.error(
            "ALARM: a pump accepted commits at or below a resolved ts that it had published; batches read before lack "
            "them",
            pump=view.node_id,
            count=found.late_commit_count,
            commit_ts=list(found.late_commit_ts),
        )


def report_pending(view: PumpView, found: InspectResp) -> None:
    """Log a prewrite that has been pending for a long time: it holds the watermark back at its start_ts."""
    oldest = found.pending[0] if found.pending else None
    if oldest is None or oldest.age_ms < PENDING_WARN_MS:
        view.pending_long.over(pump=view.node_id)
        return
    view.pending_long.failed(
        pump=view.node_id,
        start_ts=oldest.start_ts,
        writer=bytes(oldest.writer).hex(),
        age_s=oldest.age_ms // 1000,
        ddl_job_id=oldest.ddl_job_id,
        pending=found.pending_count,
    )


def scope_of(changefeed: str, destination: str) -> str:
    """Return the part of an etcd key that identifies a changefeed and its destination, whichever drainer runs it."""
    return f"{changefeed}-{hashlib.blake2b(destination.encode(), digest_size=6).hexdigest()}"


# Detects pumps that left or rejoined since the last survey (correctness rule 2: pumps that return).
#
#     counts ──► offline, or paused and final: the position is stored in etcd before any watermark without the pump
#       ▲                                      is used
#       └─────── rejoins: binlogs in (stored position, current position] were never read ──► alarm; later ones are read
#
# A pump that left in order holds no such binlogs. One that an operator forced offline may: its rows are older than
# those applied since, so they cannot be applied now, and they must not count as applied either.
class Membership:
    """The positions at which pumps stopped counting, in etcd under `scope`; none are known until `load`. `position`:
    returns the commit_ts up to which everything is applied. `unfinished`: returns whether a batch after the position
    was begun, which must be finished without pumps that rejoined."""

    def __init__(
        self, etcd: Etcd, scope: str, *, position: Callable[[], int], unfinished: Callable[[], bool] = lambda: False
    ) -> None:
        self._etcd = etcd
        self._prefix = f"{ROOT}/left/{scope}/"
        self._left: dict[str, int] = {}  # by node id
        self._position = position
        self._unfinished = unfinished

    async def load(self) -> None:
        """Read the entries of earlier runs. Raises EtcdError."""
        kvs, _ = await self._etcd.range(self._prefix)
        for kv in kvs:
            node_id, text = kv.key.removeprefix(self._prefix), kv.value.decode(errors="replace")
            if text.isdigit():
                self._left[node_id] = int(text)
            else:
                _log.error("cannot parse the recorded position of a pump that left", key=kv.key, value=text)

    def left_ts(self, node_id: str) -> int | None:
        """Return the position up to which a pump was read that stopped counting; None for one that counts."""
        return self._left.get(node_id)

    async def settle(
        self,
        views: Mapping[str, PumpView],
        marks: Sequence[PumpMark],
        clients: Mapping[tuple[str, str], PumpClient],
        after_ts: int,
    ) -> None:
        """Record the position of pumps that left, before a watermark without them is used, and check rejoined pumps for
        binlogs below the position. Only for a survey at the position: one made ahead of it raises HeldBack.

        `views`: of every pump ever seen; `marks`: answers of the pumps that count; `clients`: by (node id, host).
        Raises HeldBack.
        """
        counting = {mark.node_id for mark in marks}
        leaving = [node_id for node_id in views if node_id not in counting and node_id not in self._left]
        returned = [mark for mark in marks if mark.node_id in self._left]
        if (leaving or returned) and after_ts != self._position():
            raise HeldBack("", "the list of pumps has changed")
        try:
            for node_id in leaving:
                await self._etcd.put(f"{self._prefix}{node_id}", str(after_ts).encode())
                self._left[node_id] = after_ts
            for mark in returned:
                # The watermark waits for its resolved ts anyway, and more binlogs may arrive until then.
                if mark.resolved_ts >= after_ts and not self._unfinished():
                    await self._report_missed(views[mark.node_id], mark, clients[mark.node_id, mark.host], after_ts)
        except EtcdError as error:
            raise HeldBack("", f"the registry does not answer: {error}") from error

    async def _report_missed(self, view: PumpView, mark: PumpMark, client: PumpClient, position_ts: int) -> None:
        from_ts = self._left[mark.node_id]
        if from_ts < mark.purged_ts:
            _log.warning(
                "a pump that rejoined has purged binlogs that were never read", pump=mark.node_id, until=mark.purged_ts
            )
            from_ts = mark.purged_ts
        missed = Missed()
        if from_ts < position_ts:
            try:
                missed = await client.missed(after_ts=from_ts, until_ts=position_ts)
            except BinlogError as error:
                raise HeldBack(
                    mark.node_id, f"it rejoined and does not report which binlogs it holds: {error}"
                ) from error
        if missed.count:
            view.missed = missed
            _log.error(
                "ALARM: a pump rejoined with binlogs below the drainer's position; they are not applied",
                pump=mark.node_id,
                count=missed.count,
                start_and_commit_ts=list(missed.shown),
                after_ts=from_ts,
                until_ts=position_ts,
            )
        await self._etcd.delete(f"{self._prefix}{mark.node_id}")
        del self._left[mark.node_id]
