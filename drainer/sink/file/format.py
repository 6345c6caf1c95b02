"""The interface of the formats of files: their names, their contents, and what becomes of complete files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes
from drainer.changes.vector import Ints
from drainer.protocol.pb_file.records import OVERHEAD, file_name, parse_name, record
from drainer.schema.steps import Ddl
from drainer.sink.file.files import Current, Notes

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
    """Return (database, table) under which a DDL is filed: the first table that it touches, or (database, "") for a DDL
    on a database."""
    return next(iter(step.touched_names), (step.schema, ""))


class FileFormat(ABC):
    """One kind of files. `kind`: the db-type; `mode`: the permissions of a file; `stored_generated`: see
    base.ChangeSink."""

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


# Files of records (protocol/pb_file/records.py), all in one slot: what pb and Parquet have in common. Pure.


class RecordFiles(FileFormat):
    """Complete files are tended (files.Housekeeping)."""

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
        `stopped`: returns True if the drainer is ending, and the work should be left for the next start. Raises
        OSError."""

    @abstractmethod
    def kept(self, directory: Path) -> Iterable[Path]:
        """Return the files that are removed after the retention time."""


def put_record(put: Put, parts: Iterable[bytes], length: int) -> None:
    """Write a record whose payload has these parts, of `length` bytes together."""
    put(0, record(parts, length), length + OVERHEAD)
