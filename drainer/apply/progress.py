"""Counters since the start, what a batch waits for, and waiting."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

WAIT_FIRST_S = 0.05
WAIT_MAX_S = 5.0

_log = get_logger(__name__)


class Stopped(BinlogError):
    """The daemon is stopping while a batch waits for something; its range is read again at the next start."""


@dataclass(slots=True)
class Progress:
    """Counters since the start, and what a batch waits for now. Read by the status page. `batch_since_s`: unix time at
    which the current batch began; 0: there is none. `step`: the current step of a large transaction, `step_bytes` of
    `step_total` of it; "" where none is under way. `left_out`: transactions that loopback-control left out.
    """

    position_ts: int = 0
    last_ddl: str = ""
    rows: int = 0
    ddls: int = 0
    left_out: int = 0
    batches: dict[str, int] = field(default_factory=lambda: {"driver": 0, "distributed": 0, "large": 0})
    duplicates: int = 0
    waiting_for: str = ""
    last_mode: str = ""
    last_bytes: int = 0
    read_bytes: int = 0
    batch_since_s: float = 0.0
    step: str = ""
    step_bytes: int = 0
    step_total: int = 0


class Wait:
    """Waits between attempts, longer each time, and shows the reason in the log and the status. Raises Stopped when the
    daemon stops."""

    def __init__(self, stop: threading.Event, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._pause_s = WAIT_FIRST_S
        self._outage = Outage(_log, "a batch waits", "the batch goes on")

    def unless(self, go_on: bool, why: BinlogError) -> None:
        if go_on:
            return
        self._outage.failed(why=str(why))
        self._progress.waiting_for = str(why)
        if self._stop.wait(self._pause_s):
            raise Stopped(f"stopped while waiting: {why}")
        self._pause_s = min(self._pause_s * 2, WAIT_MAX_S)

    def over(self) -> None:
        self._outage.over()
        self._progress.waiting_for = ""
