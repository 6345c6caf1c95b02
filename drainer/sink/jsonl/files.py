"""The files of a directory: appending, truncating to the recorded length, and starting the next file.

`000-000000012.jsonl` is file 12 of slot 0. Of each slot one file is current: its number and length are recorded with
the position (drainer/sink/document_position.py), and bytes after that length are not committed. Files of lower
numbers are complete. `*.part` belongs to a batch that executors write; what is committed of it gets a file's name.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger

from drainer.sink.errors import DestinationDown, DestinationRefused

SUFFIX: Final = ".jsonl"
PART: Final = ".part"
_NAME: Final = re.compile(r"(\d{3})-(\d{9,})" + re.escape(SUFFIX))

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Current:
    """A slot's current file: its number, and its committed bytes; with 0 the file may not exist."""

    number: int = 0
    length: int = 0


@dataclass(slots=True)
class Notes:
    """Data stored with the position. `renames`: committed parts, and the names of the files that they become. `ddls`:
    commit_ts of the last DDL, and how many DDLs were written with it."""

    current: dict[int, Current] = field(default_factory=dict)
    renames: list[tuple[str, str]] = field(default_factory=list)
    ddls: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, notes: dict[str, Any]) -> Notes:
        current = {int(slot): Current(*found) for slot, found in notes.get("current", {}).items()}
        commit_ts, count = notes.get("ddls", (0, 0))
        return cls(current, [(part, name) for part, name in notes.get("renames", [])], (commit_ts, count))

    def value(self) -> dict[str, Any]:
        current = {str(slot): [found.number, found.length] for slot, found in sorted(self.current.items())}
        return {"current": current, "renames": [list(pair) for pair in self.renames], "ddls": list(self.ddls)}


def file_name(slot: int, number: int) -> str:
    return f"{slot:03d}-{number:09d}{SUFFIX}"


class Appender:
    """Appends to current files, each at its recorded length; `finish` syncs them and returns the lengths to record.
    Nothing is committed before they are recorded."""

    def __init__(self, directory: Path, current: dict[int, Current], rotate_bytes: int) -> None:
        self._directory = directory
        self._current = current
        self._rotate_bytes = rotate_bytes
        self._open: dict[int, tuple[Current, BinaryIO]] = {}
        self._files: list[BinaryIO] = []

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        """Data that `finish` has not synced is not needed, so an error while closing must not hide another error."""
        for file in self._files:
            with suppress(OSError):
                file.close()

    def add(self, slot: int, lines: Iterable[bytes]) -> None:
        """Raises DestinationDown for an error of the disk, and DestinationRefused if committed bytes are missing."""
        try:
            current, file = self._open.get(slot) or self._opened(slot)
            data = b"".join(lines)
            file.write(data)
        except OSError as error:
            raise DestinationDown(f"{self._directory}: {error}") from error
        self._open[slot] = (Current(current.number, current.length + len(data)), file)

    def _opened(self, slot: int) -> tuple[Current, BinaryIO]:
        current = self._current.get(slot, Current())
        if current.length >= self._rotate_bytes:
            current = Current(current.number + 1)
        path = self._directory / file_name(slot, current.number)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        file = os.fdopen(handle, "r+b")
        self._files.append(file)
        _check_length(path, os.fstat(handle).st_size, current)  # truncate would extend it with zeros
        file.truncate(current.length)  # bytes of an earlier attempt, also of an earlier process
        file.seek(current.length)
        return current, file

    def finish(self) -> dict[int, Current]:
        crash_point("jsonl.appended")
        try:
            for _, file in self._open.values():
                file.flush()
                os.fsync(file.fileno())
            if self._open:
                sync_directory(self._directory)
        except OSError as error:
            raise DestinationDown(f"{self._directory}: {error}") from error
        crash_point("jsonl.synced")
        return {**self._current, **{slot: current for slot, (current, _) in self._open.items()}}


def write_parts(directory: Path, stem: str, lines: Iterable[bytes], rotate_bytes: int) -> list[tuple[str, int]]:
    """Write lines as synced parts with unique names; returns (name, length) of each. If the disk refuses one, all are
    removed, so that further attempts do not fill the disk. Raises DestinationDown."""
    found: list[tuple[str, int]] = []
    begun: list[Path] = []
    try:
        for data in _cut(lines, rotate_bytes):
            name = f"{stem}-{len(found)}-{uuid.uuid4().hex}{PART}"
            begun.append(directory / name)
            with begun[-1].open("xb") as file:
                file.write(data)
                crash_point("jsonl.part_written")
                file.flush()
                os.fsync(file.fileno())
            found.append((name, len(data)))
        sync_directory(directory)
    except OSError as error:
        _remove(begun)
        raise DestinationDown(f"{directory}: {error}") from error
    return found


def _cut(lines: Iterable[bytes], rotate_bytes: int) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= rotate_bytes:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def check_part(directory: Path, name: str, length: int) -> None:
    """Raises DestinationRefused if the driver does not see a part with its written length."""
    try:
        found = (directory / name).stat().st_size
    except OSError as error:
        raise DestinationRefused(
            f"{directory / name}, which an executor has written, is not there ({error.strerror}): all executors and "
            f"the driver must see one directory under this path; or set spread = false in [syncer]"
        ) from error
    if found != length:
        raise DestinationRefused(f"{directory / name} has {found} bytes, and an executor has written {length}")


def rename_parts(directory: Path, renames: Sequence[tuple[str, str]]) -> None:
    """May be repeated. Raises DestinationRefused if neither a part nor its file exists."""
    if not renames:
        return
    try:
        for part, name in renames:
            try:
                (directory / part).rename(directory / name)
            except FileNotFoundError as error:
                if not (directory / name).exists():
                    raise DestinationRefused(
                        f"{directory / name} is committed, and neither it nor {part} is there: restore it, or empty "
                        f"the directory and start anew"
                    ) from error
            crash_point("jsonl.renamed")
        sync_directory(directory)
    except OSError as error:
        raise DestinationDown(f"{directory}: {error}") from error


def repair(directory: Path, notes: Notes) -> None:
    """Repair after a crash: committed parts are renamed, all others removed, and current files truncated to their
    recorded length. Raises DestinationRefused for a file that is shorter than its committed length, and DestinationDown
    for an error of the disk."""
    rename_parts(directory, notes.renames)
    for slot, current in notes.current.items():
        cut_back(directory, slot, current)
    try:
        for path in _uncommitted(directory, notes):
            _log.warning("removing a file that was not committed", file=str(path))
            path.unlink(missing_ok=True)
    except OSError as error:
        raise DestinationDown(f"{directory}: {error}") from error


def cut_back(directory: Path, slot: int, current: Current) -> None:
    """Truncate the slot's current file to its recorded length and sync it. Raises as `repair`."""
    path = directory / file_name(slot, current.number)
    try:
        length = path.stat().st_size if path.exists() else 0
        _check_length(path, length, current)
        if length > current.length:
            _log.warning("removing lines that were not committed", file=str(path), bytes=length - current.length)
            with path.open("r+b") as file:
                file.truncate(current.length)
                os.fsync(file.fileno())
    except OSError as error:
        raise DestinationDown(f"{directory}: {error}") from error


def _check_length(path: Path, length: int, current: Current) -> None:
    if length < current.length:
        raise DestinationRefused(
            f"{path} has {length} bytes, and {current.length} are committed: restore it, or empty the directory and "
            f"start anew"
        )


def remove_parts(directory: Path, stem: str) -> None:
    """Remove the parts of other attempts of a committed batch."""
    _remove(directory.glob(f"*-{stem}-*{PART}"))


def _remove(parts: Iterable[Path]) -> None:
    """Remove parts; an error is only logged, because the parts do no harm and the next start tries again."""
    try:
        for path in parts:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove a file that was not committed; the next start tries again", error=str(error))


def slot_files(directory: Path) -> dict[Path, tuple[int, int]]:
    """The files named as a slot's: path → (slot, number)."""
    found = {}
    for path in sorted(directory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match:
            found[path] = int(match[1]), int(match[2])
    return found


def _uncommitted(directory: Path, notes: Notes) -> list[Path]:
    """Parts, and files after the current one of their slot."""
    beyond = []
    for path, (slot, number) in slot_files(directory).items():
        current = notes.current.get(slot, Current())
        if number > current.number or (number == current.number and not current.length):
            beyond.append(path)
    return [*beyond, *sorted(directory.glob(f"*{PART}"))]
