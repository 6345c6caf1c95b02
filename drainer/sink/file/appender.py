"""The record files of a directory: appending, starting the next file, and truncating to the recorded length.

One file is current: its name and length are recorded with the position. Bytes after that length and files of higher
numbers are not committed. Files of lower numbers are complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger
from google_crc32c import extend

from drainer.protocol.pb_file.records import OVERHEAD, TAIL, file_name, head, parse_name
from drainer.sink.errors import DestinationDown, DestinationRefused

_MODE: Final = 0o600
_BUFFER: Final = 1 << 20

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Current:
    """The current file. `length`: its committed bytes; `begun_ms`: when it was begun, ms since 1970; `name` "": it is
    not begun yet. All files of lower numbers are complete."""

    number: int = 0
    name: str = ""
    length: int = 0
    begun_ms: int = 0

    @classmethod
    def of(cls, notes: dict[str, Any]) -> Current:
        return cls(*notes.get("current", ()))

    def value(self) -> list[Any]:
        return [self.number, self.name, self.length, self.begun_ms]


@dataclass(frozen=True, slots=True)
class Rotation:
    """When the next file is started. `interval_ms` 0: never because of a file's age."""

    file_bytes: int
    interval_ms: int = 0

    def is_due(self, current: Current, now_ms: int) -> bool:
        if not current.length:
            return False
        return current.length >= self.file_bytes or 0 < self.interval_ms <= now_ms - current.begun_ms


class Appender:
    """Append records after the current file's recorded length. `finish` syncs them and returns what to record; nothing
    is committed before it is recorded."""

    def __init__(self, directory: Path, current: Current, rotation: Rotation, clock_s: Callable[[], float]) -> None:
        """`clock_s`: seconds since 1970."""
        self._directory = directory
        self._current = current
        self._rotation = rotation
        self._clock_s = clock_s
        self._file: BinaryIO | None = None
        self._made = False

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file. Data that `finish` has not synced is not needed, so an error while closing must not hide
        another error."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def put(self, parts: Iterable[bytes], length: int) -> None:
        """Append a record with this payload of `length` bytes. Raises DestinationDown for an error of the disk, and
        DestinationRefused if committed bytes are missing."""
        try:
            current, file = self._ready()
            file.write(head(length))
            crc = 0
            for part in parts:
                file.write(part)
                crc = extend(crc, part)
            file.write(TAIL.pack(crc))
        except OSError as error:
            raise DestinationDown(f"{self._directory}: {error}") from error
        self._current = Current(current.number, current.name, current.length + length + OVERHEAD, current.begun_ms)

    def _ready(self) -> tuple[Current, BinaryIO]:
        """Return the file for the next record; start a new one if it is due."""
        now_s = self._clock_s()
        current = self._current
        if self._rotation.is_due(current, int(now_s * 1000)):
            if self._file is None:
                repair(self._directory, current)
            self._sync()
            current = Current(current.number + 1)
        if not current.name:
            local = datetime.fromtimestamp(now_s).astimezone()
            current = Current(current.number, file_name(current.number, local), 0, int(now_s * 1000))
            remove_beyond(self._directory, current.number - 1)  # files of an earlier attempt
            self._file = self._opened(current.name, os.O_CREAT | os.O_EXCL)
            self._made = True
        elif self._file is None:
            self._file = self._opened(current.name)
            check_length(self._directory / current.name, os.fstat(self._file.fileno()).st_size, current)
            self._file.truncate(current.length)  # bytes of an earlier attempt, also of an earlier process
            self._file.seek(current.length)
        self._current = current
        assert self._file is not None
        return current, self._file

    def _opened(self, name: str, flags: int = 0) -> BinaryIO:
        path = self._directory / name
        try:
            return os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, _MODE), "r+b", _BUFFER)
        except FileNotFoundError as error:
            raise DestinationRefused(
                f"{path} does not exist, and {self._current.length} bytes of it are committed: "
                f"restore it, or empty the directory and start anew"
            ) from error

    def _sync(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def finish(self) -> Current:
        crash_point("file.appended")
        try:
            self._sync()
            if self._made:
                sync_directory(self._directory)
        except OSError as error:
            raise DestinationDown(f"{self._directory}: {error}") from error
        crash_point("file.synced")
        return self._current


def check_length(path: Path, length: int, current: Current) -> None:
    """Raise DestinationRefused if committed bytes are missing."""
    if length < current.length:
        raise DestinationRefused(
            f"{path} has {length} bytes, and {current.length} are committed: restore it, or empty the directory and "
            f"start anew"
        )


def repair(directory: Path, current: Current) -> None:
    """Repair after a crash or a failed attempt, before the current file is continued or complete: remove files after
    it, and truncate it to its recorded length.

    Raises DestinationRefused for a file that is shorter than its committed length, and DestinationDown for an error of
    the disk."""
    try:
        if current.name:
            _cut_back(directory / current.name, current)
        remove_beyond(directory, current.number if current.name else current.number - 1)
    except OSError as error:
        raise DestinationDown(f"{directory}: {error}") from error


def _cut_back(path: Path, current: Current) -> None:
    length = path.stat().st_size if path.exists() else 0
    check_length(path, length, current)
    if length > current.length:
        _log.warning("records that were not committed are truncated", file=str(path), bytes=length - current.length)
        with path.open("r+b") as file:
            file.truncate(current.length)
            os.fsync(file.fileno())


def remove_beyond(directory: Path, number: int) -> None:
    """Remove files with numbers above `number`, which are not committed. Raises OSError."""
    for path in sorted(directory.iterdir()):
        name = parse_name(path.name)
        if name is not None and name.number > number:
            _log.warning("a file that was not committed is removed", file=str(path))
            path.unlink(missing_ok=True)
