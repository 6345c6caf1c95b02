"""What is known of each pump, for the status page and the log, and the error of a watermark that cannot move."""

from __future__ import annotations

from dataclasses import dataclass, field

from binlog.cluster.node import State
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from drainer.pumps.client import Inspection
from drainer.pumps.left_pumps import Missed
from drainer.pumps.watermark import Pending, Watermark

# A pump that is away for a moment is no reason to get up at night.
AWAY_WARN_S = 3.0
# A transaction may take long; one that takes this long is worth a line, and another every so often.
PENDING_WARN_MS = 30_000
HOLDS_MS = 5_000  # a prewrite that has waited this long is what an operator sees behind a lag
PENDING_EVERY_S = 60.0

_log = get_logger(__name__)


def _away() -> Outage:
    return Outage(
        _log,
        "a pump holds everything back",
        "pump answers again",
        quiet_s=AWAY_WARN_S,
        first="a pump does not answer",
    )


def _pending() -> Outage:
    return Outage(
        _log,
        "a prewrite waits for its commit and holds everything back; `binlogctl settle` ends it",
        "no prewrite waits for long any more",
        every_s=PENDING_EVERY_S,
    )


class HeldBack(BinlogError):
    """The watermark cannot move now; `node_id` is the pump that holds it ('' = the list keeps changing)."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(node_id, why)
        self.node_id = node_id
        self.why = why

    def __str__(self) -> str:
        return f"held back by pump {self.node_id}: {self.why}" if self.node_id else self.why


def held_by_prewrite(watermark: Watermark) -> tuple[HeldBack, float] | None:
    """What keeps the watermark where it is although every pump answers, and for how many seconds; None: nothing yet."""
    lowest = min(watermark.marks, key=lambda mark: mark.resolved_ts, default=None)
    if lowest is None or lowest.holding is None or lowest.holding.age_ms < HOLDS_MS:
        return None
    return HeldBack(lowest.node_id, _waits(lowest.holding)), lowest.holding.age_ms / 1000


def _waits(pending: Pending) -> str:
    job = f" of DDL job {pending.ddl_job_id}" if pending.ddl_job_id else ""
    if pending.writer:
        return (
            f"its prewrite {pending.start_ts}{job} waits for the commit of writer {pending.writer}: the pump ends it "
            "by itself when that writer's lease in etcd has ended"
        )
    return (
        f"its prewrite {pending.start_ts}{job} waits for its commit; its writer holds no lease: if it is gone, "
        "`binlogctl settle` ends the prewrite"
    )


@dataclass(slots=True)
class PumpView:
    """What is known of one pump, for the status page. `down_since`: unix seconds of its first unanswered question;
    `left_ts`: it does not count since the position was there; `missed`: what it brought back that had been passed."""

    node_id: str
    host: str = ""
    state: State = State.OFFLINE
    counts: bool = False
    resolved_ts: int = 0
    pulled_ts: int = 0
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
            "ALARM: commits arrived at or below a resolved ts already given out; what was read before lacks them",
            pump=view.node_id,
            count=found.late_count,
            commit_ts=list(found.late_ts),
        )


def report_pending(view: PumpView, found: Inspection) -> None:
    """A prewrite without its commit holds everything back at its start_ts; its writer may be gone."""
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
