"""Work on complete files in the background: they are compressed or converted, and removed after the retention time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final

from binlog.runtime.log import get_logger

from drainer.protocol.pb_file.records import parse_name
from drainer.sink.file.format import FileFormat

_HOUR_S: Final = 3600.0

_log = get_logger(__name__)


class Housekeeping:
    """One thread that works when it is woken: when a file has become complete, otherwise once an hour (`D-FO-03`).
    Errors are logged and the work is tried again. Committed data does not depend on it."""

    def __init__(
        self, directory: Path, format_: FileFormat, retention: timedelta, clock_s: Callable[[], float]
    ) -> None:
        """`clock_s`: seconds since 1970."""
        self._directory = directory
        self._format = format_
        self._retention = retention
        self._clock_s = clock_s
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._work: Future[None] | None = None
        self._last: tuple[int, float] | None = None

    def wake(self, current_number: int) -> None:
        """Start the work, if it is due. Files with a number below `current_number` are complete. Returns
        immediately."""
        now = self._clock_s()
        if self._last is not None and self._last[0] == current_number and now - self._last[1] < _HOUR_S:
            return
        if self._work is not None and not self._work.done():
            return  # the next call comes soon
        self._last = (current_number, now)
        self._work = self._pool.submit(self._tidy, current_number)

    def settle(self) -> None:
        """Wait for work that has begun."""
        if self._work is not None:
            self._work.result()

    def close(self) -> None:
        """End the thread soon; work that has begun is interrupted."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _tidy(self, current_number: int) -> None:
        records = self._format.files_directory(self._directory)
        for path in sorted(records.iterdir()):
            name = parse_name(path.name)
            if name is not None and name.number < current_number and not self._stop.is_set():
                try:
                    self._format.complete(self._directory, path, self._stop.is_set)
                except Exception as error:  # noqa: BLE001  whatever it is, the file stays as it is
                    _log.error(
                        "a complete file cannot be compressed or converted; it stays as it is",
                        file=str(path),
                        error=str(error),
                    )
        if self._retention:
            self._remove_old(current_number)

    def _remove_old(self, current_number: int) -> None:
        oldest_s = self._clock_s() - self._retention.total_seconds()
        for path in self._format.kept(self._directory):
            name = parse_name(path.name)
            try:
                if (name is None or name.number < current_number) and path.stat().st_mtime < oldest_s:
                    path.unlink()
                    _log.info("a file older than retention-time is removed", file=str(path))
            except OSError as error:
                _log.warning("a file older than retention-time cannot be removed", file=str(path), error=str(error))
