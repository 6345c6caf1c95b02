"""The interface of the formats of files: their names, their contents, and what becomes of complete files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import numpy as np

from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes
from drainer.changes.vector import Ints
from drainer.protocol.pb_file.records import OVERHEAD, file_name, parse_name, record
from drainer.schema.steps import Ddl
from drainer.sink.file.files import Current, FileNames, Notes

# A slot, parts of bytes that follow one another in one file, and how many bytes they have.
Put = Callable[[int, Iterable[bytes], int], None]


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


class RecordWriter:
    """Turns the changes of one step into bytes of files."""

    def add(self, segment: ChangeSegment) -> None:
        """Write the changes of a segment. Segments are passed in upstream's order; a large transaction may be in
        several."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write the data that is held back. Called after the last segment."""

    def abandon(self) -> None:
        """Discard the data that is held back; what was written is discarded, too. May be called after `finish`."""


class FileFormat(FileNames, Protocol):
    """One kind of files."""

    @property
    def kind(self) -> str:
        """Return the db-type."""
        ...

    @property
    def slotting(self) -> ByTable: ...

    @property
    def stored_generated(self) -> bool:
        """See base.ChangeSink."""
        ...

    @property
    def is_tended(self) -> bool:
        """Return whether `complete` and `kept` are to be called."""
        ...

    def files_directory(self, directory: Path) -> Path:
        """Return the directory of the files, under the destination's directory."""
        ...

    def notes_of(self, value: Mapping[str, Any]) -> Notes:
        """Return what `notes_value` returned; of an empty mapping, Notes()."""
        ...

    def notes_value(self, notes: Notes) -> dict[str, Any]:
        """Return what is stored with the position, as JSON."""
        ...

    def writer(self, scratch: Path, put: Put) -> RecordWriter:
        """Return a writer that passes bytes to `put`. `scratch`: a directory for unnamed temporary files."""
        ...

    def ddl(self, step: Ddl, place: int, put: Put) -> None:
        """Pass the bytes of a DDL to `put`. `place`: the number of earlier DDLs with the same commit_ts."""
        ...

    def complete(self, directory: Path, file: Path, stopped: Callable[[], bool]) -> None:
        """Convert or compress a complete file. Called once for each file, and again if it was interrupted at any point.
        `stopped`: returns True if the drainer is ending, and the work should be left for the next start. Raises
        OSError."""
        ...

    def kept(self, directory: Path) -> Iterable[Path]:
        """Return the files that are removed after the retention time."""
        ...


# Files of records (protocol/pb_file/records.py), all in one slot: what pb and Parquet have in common. Pure.


class RecordFiles:
    """See format.FileFormat."""

    kind: Final = "file"
    slotting: Final = ByTable(1)
    mode: Final = 0o600
    is_tended: Final = True

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


def put_record(put: Put, parts: Iterable[bytes], length: int) -> None:
    """Write a record whose payload has these parts, of `length` bytes together."""
    put(0, record(parts, length), length + OVERHEAD)
