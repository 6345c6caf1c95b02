"""Progress of reading the value log at a start: for log lines and the status page. It can also stop the reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from binlog.runtime.log import get_logger

from pump.errors import Stopping

LOG_INTERVAL_S = 2.0
# The clock is read after this many records or bytes.
CHECK_RECORDS = 64
CHECK_BYTES = 4 << 20

# The steps, as log lines name them.
CHECKING = "checking the newest value log file"
READING = "reading the value log"

_log = get_logger("pump.store.recovery")


class Reading(NamedTuple):
    """The progress of one step: `bytes` of `of_bytes` have been read, the last of them from file `fid`."""

    step: str
    records: int
    bytes: int
    of_bytes: int
    fid: int

    @property
    def percent(self) -> int:
        return round(100 * self.bytes / max(1, self.of_bytes))


class ReadingProgress:
    """Progress that the reading thread updates. `now` (None before the first step) and `stop` are safe for use by other
    threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now: Reading | None = None
        self._clock = clock
        self._logged_s = clock()
        self._check_at = CHECK_BYTES
        self._stopping = threading.Event()

    def begin(self, step: str, of_bytes: int, fid: int) -> None:
        self.now = Reading(step, 0, 0, of_bytes, fid)
        self._check_at = CHECK_BYTES

    def reached(self, records: int, done_bytes: int, fid: int) -> None:
        """Record that `records` and `done_bytes` of this step have been read. Raises Stopping after `stop`."""
        if records % CHECK_RECORDS and done_bytes < self._check_at:
            return
        self._check_at = done_bytes + CHECK_BYTES
        assert self.now is not None, "no step has begun"
        if self._stopping.is_set():
            raise Stopping("asked to stop while the value log was read")
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
        """Make the next `reached` raise Stopping."""
        self._stopping.set()
