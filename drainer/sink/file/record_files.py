"""Files of records (protocol/pb_file/records.py), all in one slot: what pb and Parquet have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from drainer.protocol.pb_file.records import OVERHEAD, file_name, parse_name, record
from drainer.sink.file.files import Current, Notes
from drainer.sink.file.format import ByTable, Put


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
