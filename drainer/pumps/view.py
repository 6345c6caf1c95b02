"""What is known of each pump, for the status page and the log, and the error of a watermark that cannot move."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from binlog.errors import BinlogError
from binlog.log import get_logger
from binlog.node import State

from drainer.pumps.client import Inspection
from drainer.pumps.left import Missed

COMPLAIN_EVERY_S = 10.0
# A transaction may take long; one that takes this long is worth a line, and another every so often.
PENDING_WARN_MS = 30_000
PENDING_EVERY_S = 60.0

_log = get_logger(__name__)


class HeldBack(BinlogError):
    """The watermark cannot move now; `node_id` is the pump that holds it ('' = the list keeps changing)."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(node_id, why)
        self.node_id = node_id
        self.why = why

    def __str__(self) -> str:
        return f"held back by pump {self.node_id}: {self.why}" if self.node_id else self.why


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
    complained_at: float = field(default=-COMPLAIN_EVERY_S, repr=False)
    pending_told_at: float = field(default=-PENDING_EVERY_S, repr=False)


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
        return
    if time.monotonic() - view.pending_told_at >= PENDING_EVERY_S:
        view.pending_told_at = time.monotonic()
        _log.warning(
            "a prewrite waits for its commit and holds everything back; `binlogctl settle` ends it",
            pump=view.node_id,
            start_ts=oldest.start_ts,
            age_s=oldest.age_ms // 1000,
            ddl_job_id=oldest.ddl_job_id,
            pending=found.pending_count,
        )
