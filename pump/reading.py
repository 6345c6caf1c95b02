"""How far a start has read the value log: for the log, for the status page, and for whoever wants it to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

LOG_INTERVAL_S = 2.0
# Between two looks at the clock:
LOOK_RECORDS = 64
LOOK_BYTES = 4 << 20

# The steps, as the log names them.
CHECKING = "checking the newest value log file"
READING = "reading the value log"

_log = get_logger("pump.recovery")


class ReadingStopped(BinlogError):
    """The pump was asked to stop while it read its value log. What the index lacks the next start reads again."""


class Reading(NamedTuple):
    """`bytes` of `of_bytes` are read in this step, the last of them from file `fid`."""

    step: str
    records: int
    bytes: int
    of_bytes: int
    fid: int

    @property
    def percent(self) -> int:
        return round(100 * self.bytes / max(1, self.of_bytes))


class ReadingProgress:
    """Written by the one thread that reads; `now`, None before the first step, and `stop` are for any."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now: Reading | None = None
        self._clock = clock
        self._logged_s = clock()
        self._look_at = LOOK_BYTES
        self._stopping = threading.Event()

    def begin(self, step: str, of_bytes: int, fid: int) -> None:
        self.now = Reading(step, 0, 0, of_bytes, fid)
        self._look_at = LOOK_BYTES

    def reached(self, records: int, done_bytes: int, fid: int) -> None:
        """Called for every record, or for some. ReadingStopped after `stop`."""
        if records % LOOK_RECORDS and done_bytes < self._look_at:
            return
        self._look_at = done_bytes + LOOK_BYTES
        assert self.now is not None, "no step has begun"
        if self._stopping.is_set():
            raise ReadingStopped("asked to stop while the value log was read")
        self.now = found = self.now._replace(records=records, bytes=done_bytes, fid=fid)
        now_s = self._clock()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.info(
                found.step,
                records=records,
                percent=found.percent,
                bytes=done_bytes,
                of_bytes=found.of_bytes,
                fid=fid,
            )

    def stop(self) -> None:
        """End the reading soon."""
        self._stopping.set()
