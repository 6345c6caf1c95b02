"""The files of a directory: the interface of their formats, appending, starting the next file, and truncating to the
recorded length.

Of each slot one file is current: its name and length are recorded with the position. Bytes after that length and files
of higher numbers are not committed. Files of lower numbers are complete.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final
from zlib import crc32

import numpy as np
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger

from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes
from drainer.changes.vector import Ints
from drainer.protocol.pb_file import OVERHEAD, file_name, parse_name, record
from drainer.schema.steps import Ddl
from drainer.sink.errors import DestinationDown, DestinationRefused

# Work on complete files in the background: they are compressed or converted, and removed after the retention time.

_HOUR_S: Final = 3600.0


@dataclass(eq=False)
class Housekeeping:
    """One thread that works when it is woken: when a file has become complete, otherwise once an hour (`D-FO-03`).
    Errors are logged and the work is tried again; no committed data depends on it. `clock_s`: seconds since 1970."""

    directory: Path
    format: RecordFiles
    retention: timedelta
    clock_s: Callable[[], float]

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._work: Future[None] | None = None
        self._last: tuple[int, float] | None = None

    def wake(self, current_number: int) -> None:
        """Start the work, if it is due, and return. Files with a number below `current_number` are complete."""
        now = self.clock_s()
        if self._last is not None and self._last[0] == current_number and now - self._last[1] < _HOUR_S:
            return
        if self._work is not None and not self._work.done():
            return  # the next call comes soon
        self._last = (current_number, now)
        self._work = self._pool.submit(self._tidy, current_number)

    def close(self) -> None:
        """End the thread soon; work that has begun is interrupted."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _tidy(self, current_number: int) -> None:
        records = self.format.files_directory(self.directory)
        for path in sorted(records.iterdir()):
            name = parse_name(path.name)
            if name is not None and name.number < current_number and not self._stop.is_set():
                try:
                    self.format.complete(self.directory, path, self._stop.is_set)
                except Exception as error:  # noqa: BLE001  whatever it is, the file stays as it is
                    _log.error(
                        "a complete file cannot be compressed or converted; it stays as it is",
                        file=str(path),
                        error=str(error),
                    )
        if self.retention:
            self._remove_old(current_number)

    def _remove_old(self, current_number: int) -> None:
        oldest_s = self.clock_s() - self.retention.total_seconds()
        for path in self.format.kept(self.directory):
            name = parse_name(path.name)
            try:
                if (name is None or name.number < current_number) and path.stat().st_mtime < oldest_s:
                    path.unlink()
                    _log.info("a file older than retention-time is removed", file=str(path))
            except OSError as error:
                _log.warning("a file older than retention-time cannot be removed", file=str(path), error=str(error))


_BUFFER: Final = 1 << 20

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Current:
    """A slot's current file. `length`: its committed bytes; `begun_ms`: when it was begun, ms since 1970; `name` "": it
    is not begun yet. All files of lower numbers are complete."""

    number: int = 0
    name: str = ""
    length: int = 0
    begun_ms: int = 0


@dataclass(frozen=True, slots=True)
class Notes:
    """Data stored with the position. `current`: by slot; `renames`: committed parts (lines.py), and the names of the
    files that they become; `ddls`: commit_ts of the last DDL, and how many DDLs were written with it."""

    current: Mapping[int, Current] = field(default_factory=dict)
    renames: tuple[tuple[str, str], ...] = ()
    ddls: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Rotation:
    """When the next file is started. `interval_ms` 0: never because of a file's age."""

    file_bytes: int
    interval_ms: int = 0

    def is_due(self, current: Current, now_ms: int) -> bool:
        if not current.length:
            return False
        return current.length >= self.file_bytes or 0 < self.interval_ms <= now_ms - current.begun_ms


@contextmanager
def of_disk(directory: Path) -> Iterator[None]:
    """Raise DestinationDown for an error of the disk."""
    try:
        yield
    except OSError as error:
        raise DestinationDown(f"{directory}: {error}") from error


class Files:
    """The files in a directory, as a crash or a failed attempt may have left them."""

    def __init__(self, directory: Path, names: FileFormat) -> None:
        self.directory = directory
        self.names = names

    def found(self) -> Iterator[tuple[Path, int, int]]:
        """Yield path, slot and number of each file, ordered by name."""
        for path in sorted(self.directory.iterdir()):
            parsed = self.names.parse(path.name)
            if parsed is not None:
                yield path, *parsed

    def repair(self, current: Mapping[int, Current]) -> None:
        """Truncate current files to their recorded length, and remove the files after them. Raises DestinationRefused
        for a file that is shorter than its committed length, and DestinationDown for an error of the disk."""
        with of_disk(self.directory):
            for one in current.values():
                self.cut_back(one)
            for path, slot, number in list(self.found()):
                one = current.get(slot, Current())
                if number > one.number or (number == one.number and not one.name):
                    _remove(path)

    def cut_back(self, current: Current) -> None:
        """Truncate a current file to its recorded length and sync it, before it is continued or complete. Raises
        DestinationRefused as `repair`, and OSError."""
        if not current.name:
            return
        path = self.directory / current.name
        length = path.stat().st_size if path.exists() else 0
        if length < current.length:
            raise DestinationRefused(
                f"{path} has {length} bytes, and {current.length} are committed: restore it, or empty the directory "
                f"and start anew"
            )
        if length > current.length:
            _log.warning("bytes that were not committed are truncated", file=str(path), bytes=length - current.length)
            with path.open("r+b") as file:
                file.truncate(current.length)
                os.fsync(file.fileno())

    def begin(self, slot: int, number: int, now_s: float) -> tuple[Current, BinaryIO]:
        """Make and open the file `number`; files of an earlier attempt are removed. Raises OSError."""
        for path, of_slot, found in list(self.found()):
            if of_slot == slot and found >= number:
                _remove(path)
        name = self.names.name(slot, number, datetime.fromtimestamp(now_s).astimezone())
        return Current(number, name, 0, int(now_s * 1000)), self._opened(name, os.O_CREAT | os.O_EXCL)

    def reopen(self, current: Current) -> BinaryIO:
        """Open a current file at its recorded length; bytes of an earlier attempt are truncated. Raises
        DestinationRefused if committed bytes are missing, and OSError."""
        self.cut_back(current)
        file = self._opened(current.name)
        file.seek(current.length)
        return file

    def _opened(self, name: str, flags: int = 0) -> BinaryIO:
        handle = os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC | flags, self.names.mode)
        return os.fdopen(handle, "r+b", _BUFFER)


@dataclass(eq=False)
class Appender:
    """Append after the recorded lengths of current files. `finish` syncs the files and returns what to record; nothing
    is committed before it is recorded. `clock_s`: seconds since 1970."""

    files: Files
    current: dict[int, Current]
    rotation: Rotation
    clock_s: Callable[[], float]

    def __post_init__(self) -> None:
        self._open: dict[int, BinaryIO] = {}
        self._made = False

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files. An error must not hide another one: data that `finish` has not synced is not needed."""
        for file in self._open.values():
            with suppress(OSError):
                file.close()

    def put(self, slot: int, parts: Iterable[bytes], length: int) -> None:
        """Append the parts, of `length` bytes together, to one file. Raises DestinationDown for an error of the disk,
        and DestinationRefused if committed bytes are missing."""
        try:
            current, file = self._ready(slot)
            file.writelines(parts)
        except OSError as error:
            raise DestinationDown(f"{self.files.directory}: {error}") from error
        self.current[slot] = replace(current, length=current.length + length)

    def _ready(self, slot: int) -> tuple[Current, BinaryIO]:
        """Return the slot's file, open; start a new one if it is due."""
        now_s = self.clock_s()
        current = self.current.get(slot, Current())
        if self.rotation.is_due(current, int(now_s * 1000)):
            if slot not in self._open:
                self.files.cut_back(current)
            self._sync(slot)
            current = Current(current.number + 1)
        file = self._open.get(slot)
        if file is None:
            if current.name:
                file = self.files.reopen(current)
            else:
                current, file = self.files.begin(slot, current.number, now_s)
                self._made = True
            self._open[slot] = file
        return current, file

    def _sync(self, slot: int) -> None:
        file = self._open.get(slot)
        if file is not None:
            file.flush()
            os.fsync(file.fileno())
            file.close()
            del self._open[slot]

    def finish(self) -> Mapping[int, Current]:
        crash_point("file.appended")
        with of_disk(self.files.directory):
            for slot in list(self._open):
                self._sync(slot)
            if self._made:
                sync_directory(self.files.directory)
        crash_point("file.synced")
        return self.current


def _remove(path: Path) -> None:
    _log.warning("a file that was not committed is removed", file=str(path))
    path.unlink(missing_ok=True)


# A slot, parts of bytes that follow one another in one file, and how many bytes they have.
Put = Callable[[int, Iterable[bytes], int], None]
Add = Callable[[ChangeSegment], None]


@dataclass(frozen=True, slots=True)
class ByTable:
    """See base.Slotting: all changes of a table are in the same slot."""

    count: int
    version: int = 1
    is_fixed: bool = True

    def slots_of(self, changes: Changes, slots: int) -> tuple[Ints]:
        shape = changes.shape
        return (np.full(len(changes), slot_of_table(shape.schema, shape.table, slots), np.int64),)


def slot_of_table(schema: str, table: str, slots: int) -> int:
    return crc32(f"{schema}\0{table}".encode()) % slots


def table_of(step: Ddl) -> tuple[str, str]:
    """Return (database, table) under which a DDL is filed: the first table that it touches, or (database, "")."""
    return next(iter(step.touched_names), (step.schema, ""))


class FileFormat(ABC):
    """One kind of files. `kind`: the db-type; `mode`: a file's permissions; `stored_generated`: see base.ChangeSink."""

    kind: str
    slotting: ByTable
    mode: int
    stored_generated = False

    def files_directory(self, directory: Path) -> Path:
        """Return the directory of the files, under the destination's directory."""
        return directory

    @abstractmethod
    def name(self, slot: int, number: int, now: datetime) -> str:
        """Return the name of a new file. `now`: local time."""

    @abstractmethod
    def parse(self, name: str) -> tuple[int, int] | None:
        """Return (slot, number) of a file. Return None for a name that no file has."""

    @abstractmethod
    def notes_of(self, value: Mapping[str, Any]) -> Notes:
        """Return what `notes_value` returned; of an empty mapping, Notes()."""

    @abstractmethod
    def notes_value(self, notes: Notes) -> dict[str, Any]:
        """Return what is stored with the position, as JSON."""

    @abstractmethod
    def writer(self, scratch: Path, put: Put) -> AbstractContextManager[Add]:
        """Return a context manager of a function that converts the segments of one step to bytes and passes them to
        `put`. Segments are passed in upstream's order; a large transaction may be in several. What is held back is
        written at the context's end, or discarded after an error. `scratch`: a directory for unnamed temporary
        files."""

    @abstractmethod
    def ddl(self, step: Ddl, place: int, put: Put) -> None:
        """Pass the bytes of a DDL to `put`. `place`: the number of earlier DDLs with the same commit_ts."""


# Files of records (protocol/pb_file.py), all in one slot: what pb and Parquet have in common. Pure.


class RecordFiles(FileFormat):
    """Complete files are tended (Housekeeping)."""

    kind = "file"
    slotting = ByTable(1)
    mode = 0o600

    def name(self, slot: int, number: int, now: datetime) -> str:
        return file_name(number, now)

    def parse(self, name: str) -> tuple[int, int] | None:
        found = parse_name(name)
        return None if found is None else (0, found.number)

    def notes_of(self, value: Mapping[str, Any]) -> Notes:
        return Notes({0: Current(*value["current"])}) if "current" in value else Notes()

    def notes_value(self, notes: Notes) -> dict[str, Any]:
        one = notes.current.get(0, Current())
        return {"current": [one.number, one.name, one.length, one.begun_ms]}

    @abstractmethod
    def complete(self, directory: Path, file: Path, stopped: Callable[[], bool]) -> None:
        """Convert or compress a complete file. Called once for each file, and again if it was interrupted at any point.
        `stopped`: whether the drainer is ending, which leaves the work to the next start. Raises OSError."""

    @abstractmethod
    def kept(self, directory: Path) -> Iterable[Path]:
        """Return the files that are removed after the retention time."""


def put_record(put: Put, parts: Iterable[bytes], length: int) -> None:
    """Write a record whose payload has these parts, of `length` bytes together."""
    put(0, record(parts, length), length + OVERHEAD)
