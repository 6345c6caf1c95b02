"""Progress of a first load: counted range by range, logged periodically, shown by a bar and the status page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from binlog.runtime.log import get_logger

from drainer.sink.base import TableLoad

LOG_EVERY_S: Final = 5.0
_log = get_logger(__name__)


class LoadProgress:
    """Progress of a first load. Written by the thread that loads, read by any thread. Rows, bytes and rows per second
    count what this process has loaded. The time left assumes that each remaining range takes as long as a loaded one,
    because ranges have about the same size."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.watch: Callable[[], None] = lambda: None  # called after each change
        self.tables = self.divided = self.ranges = self.loaded = self.rows = self.bytes = 0
        self._finished = 0, 0  # rows and bytes of the ranges that are loaded
        self._divided_into = self._loaded_before = 0  # ranges
        self._clock = clock
        self._begun_s = self._logged_s = clock()

    def begin(self, loads: Sequence[TableLoad]) -> None:
        """`loads`: those of the tables, as they are recorded."""
        divided = [load for load in loads if load.borders is not None]
        self.tables, self.divided = (len({load.table_id for load in some}) for some in (loads, divided))
        self.ranges = self._divided_into = sum(len(load.borders or ()) + 1 for load in divided)
        self.loaded = self._loaded_before = sum(load.loaded for load in divided)
        self._begun_s = self._clock()

    def find(self, ranges: int) -> None:
        """So many ranges of the table that is being divided were found."""
        self.ranges = self._divided_into + ranges
        self._changed()

    def divide(self) -> None:
        """The table was divided. The time of the speed begins with the last one."""
        self.divided += 1
        self._divided_into = self.ranges
        self._begun_s = self._clock()
        self._changed()

    def read(self, rows: int, read_bytes: int) -> None:
        """So much of the range at hand was read; 0: nothing yet, or it is read again."""
        self.rows, self.bytes = self._finished[0] + rows, self._finished[1] + read_bytes
        self._changed()

    def load(self) -> None:
        """The range at hand was loaded."""
        self.loaded += 1
        self._finished = self.rows, self.bytes
        self._changed()

    def distribute(self, loaded: int, rows: int, read_bytes: int) -> None:
        """Set the number of ranges that executors have loaded, and what was read by those of their tasks that have
        ended."""
        self.loaded, self._finished = loaded, (rows, read_bytes)
        self.read(0, 0)

    def phase(self) -> str:
        """In short; "": the load has not begun, or nothing is left."""
        if self.divided < self.tables:
            return f"first load: {self.divided:,} of {self.tables:,} tables divided, {self.ranges:,} ranges"
        return f"first load: {self.loaded:,} of {self.ranges:,} ranges" if self.loaded < self.ranges else ""

    def document(self) -> dict[str, int | None]:
        """As /status has it. `secondsLeft` None: not known yet."""
        seconds = max(self._clock() - self._begun_s, 1e-3)
        done = self.loaded - self._loaded_before if self.divided == self.tables else 0
        return {
            **{name: getattr(self, name) for name in ("tables", "divided", "ranges", "loaded", "rows", "bytes")},
            "rowsPerSecond": round(self.rows / seconds),
            "secondsLeft": round((self.ranges - self.loaded) * seconds / done) if done else None,
        }

    def _changed(self) -> None:
        self.watch()
        if self._clock() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = self._clock()
            _log.info("progress of the first load", **self.document())
