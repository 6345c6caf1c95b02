"""The files of a directory: appended to, cut back to what is recorded, followed by the next one.

`000-000000012.jsonl` is file 12 of slot 0. Of each slot one file is current: its number and length are recorded with
the position (drainer/sink/document_position.py), and what lies behind that length was not committed. Files of lower
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
from binlog.runtime.log import get_logger

from drainer.sink.disk import sync_directory
from drainer.sink.errors import DestinationDown, DestinationRefused

SUFFIX: Final = ".jsonl"
PART: Final = ".part"
_NAME: Final = re.compile(r"(\d{3})-(\d{9,})" + re.escape(SUFFIX))

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Current:
    """A slot's current file: its number, and how many of its bytes are committed; it need not be there at 0."""

    number: int = 0
    length: int = 0


@dataclass(slots=True)
class Notes:
    """What is kept beside the position. `renames`: parts that are committed, and the files they are to be. `ddls`: a
    commit_ts, and how many DDLs were written with it; of the last DDL."""

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
    """Appends to current files, each from its recorded length on; `finish` makes it durable and says what is then to be
    recorded. Nothing counts until that is."""

    def __init__(self, directory: Path, current: dict[int, Current], rotate_bytes: int) -> None:
        self._directory = directory
        self._current = current
        self._rotate_bytes = rotate_bytes
        self._open: dict[int, tuple[Current, BinaryIO]] = {}
        self._files: list[BinaryIO] = []

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        """What `finish` has not flushed is not wanted, so a disk that refuses it hides no other error."""
        for file in self._files:
            with suppress(OSError):
                file.close()

    def add(self, slot: int, lines: Iterable[bytes]) -> None:
        """Raises DestinationDown where the disk refuses, and DestinationRefused where committed bytes are gone."""
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
        _check_length(path, os.fstat(handle).st_size, current)  # or truncate would fill it up with zeros
        file.truncate(current.length)  # what an attempt before left, of this life or of another
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
    """Lines as durable parts, (name, length) of each, whose names nobody else has. Where the disk refuses one, none is
    left on it: attempts follow one another, and a disk that is full must not become fuller. Raises DestinationDown."""
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
    """Raises DestinationRefused for a part that the driver does not see as it was written."""
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
    """May be repeated. Raises DestinationRefused where neither a part nor its file is there."""
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
    """What a crash left: committed parts get their names, all others go, and current files end where it is recorded.

    Raises DestinationRefused for a file that is shorter than what is committed of it, and DestinationDown where the
    disk refuses."""
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
    """The slot's current file ends where it is recorded, durably. Raises as `repair`."""
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
    """What attempts that lost have left of a batch that is committed."""
    _remove(directory.glob(f"*-{stem}-*{PART}"))


def _remove(parts: Iterable[Path]) -> None:
    """What cannot be removed is in nobody's way, and the next start tries again."""
    try:
        for path in parts:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove a file that was not committed; the next start tries again", error=str(error))


def slot_files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Files with a slot's name: slot and number."""
    found = {}
    for path in sorted(directory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match:
            found[path] = int(match[1]), int(match[2])
    return found


def _uncommitted(directory: Path, notes: Notes) -> list[Path]:
    """Parts, and files behind the current one of their slot."""
    beyond = []
    for path, (slot, number) in slot_files(directory).items():
        current = notes.current.get(slot, Current())
        if number > current.number or (number == current.number and not current.length):
            beyond.append(path)
    return [*beyond, *sorted(directory.glob(f"*{PART}"))]
