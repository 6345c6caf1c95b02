"""State of each pump for the status page and the log, and the error of a watermark that cannot advance."""

from __future__ import annotations

from dataclasses import dataclass, field

from binlog.cluster.node import State
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from drainer.pumps.client import Inspection
from drainer.pumps.departed_pumps import Missed
from drainer.pumps.watermark import Pending, Watermark

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


def _pending_text(pending: Pending) -> str:
    job = f" of DDL job {pending.ddl_job_id}" if pending.ddl_job_id else ""
    if pending.writer:
        return (
            f"its prewrite {pending.start_ts}{job} waits for the commit of writer {pending.writer}: the pump settles "
            "it when that writer's lease in etcd expires"
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
    inspection: Inspection | None = None
    left_ts: int | None = None
    missed: Missed = field(default_factory=Missed)
    away: Outage = field(default_factory=_away, repr=False)
    pending_long: Outage = field(default_factory=_pending, repr=False)


def report_late(view: PumpView, found: Inspection) -> None:
    before = view.inspection.late_count if view.inspection else 0
    if found.late_count > before:
        _log.error(
            "ALARM: a pump accepted commits at or below a resolved ts that it had published; batches read before lack "
            "them",
            pump=view.node_id,
            count=found.late_count,
            commit_ts=list(found.late_ts),
        )


def report_pending(view: PumpView, found: Inspection) -> None:
    """Log a prewrite that has been pending for a long time: it holds the watermark back at its start_ts."""
    oldest = found.pending[0] if found.pending else None
    if oldest is None or oldest.age_ms < PENDING_WARN_MS:
        view.pending_long.over(pump=view.node_id)
        return
    view.pending_long.failed(
        pump=view.node_id,
        start_ts=oldest.start_ts,
        writer=oldest.writer,
        age_s=oldest.age_ms // 1000,
        ddl_job_id=oldest.ddl_job_id,
        pending=found.pending_count,
    )
