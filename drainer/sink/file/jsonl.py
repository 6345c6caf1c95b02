"""Changes as lines of JSON (docs/jsonl.md). `000-000000012.jsonl` is file 12 of slot 0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from drainer.changes.change_segment import ChangeSegment
from drainer.schema.steps import Ddl
from drainer.sink.file.files import Current, Notes, Rotation
from drainer.sink.file.format import Add, ByTable, FileFormat, Put, slot_of_table, table_of
from drainer.sink.file.lines import ddl_line, lines_by_slot
from drainer.sink.file.section import JsonlSection
from drainer.sink.file.sink import FileSink
from drainer.sink.settings import SyncerSettings

_NAME: Final = re.compile(r"(\d{3})-(\d{9,})\.jsonl")


def make(to: JsonlSection, syncer: SyncerSettings) -> FileSink:
    """Return the sink, not opened yet."""
    return FileSink(Path(to.path), JsonlFormat(to.files), rotation=Rotation(to.rotate_bytes), distributed=True)


def _name(slot: int, number: int) -> str:
    return f"{slot:03d}-{number:09d}.jsonl"


class JsonlFormat(FileFormat):
    """See format.FileFormat. `files`: how many are written at the same time."""

    kind = "jsonl"
    mode = 0o644

    def __init__(self, files: int) -> None:
        self.slotting = ByTable(files)

    def name(self, slot: int, number: int, now: datetime) -> str:
        return _name(slot, number)

    def parse(self, name: str) -> tuple[int, int] | None:
        found = _NAME.fullmatch(name)
        return None if found is None else (int(found[1]), int(found[2]))

    def notes_of(self, value: Mapping[str, Any]) -> Notes:
        current = {
            int(slot): Current(number, _name(int(slot), number) if length else "", length)
            for slot, (number, length) in value.get("current", {}).items()
        }
        commit_ts, count = value.get("ddls", (0, 0))
        return Notes(current, tuple((part, name) for part, name in value.get("renames", [])), (commit_ts, count))

    def notes_value(self, notes: Notes) -> dict[str, Any]:
        current = {str(slot): [found.number, found.length] for slot, found in sorted(notes.current.items())}
        return {"current": current, "renames": [list(pair) for pair in notes.renames], "ddls": list(notes.ddls)}

    def writer(self, scratch: Path, put: Put) -> AbstractContextManager[Add]:
        def add(segment: ChangeSegment) -> None:
            for slot, lines in lines_by_slot(segment, self.slotting).items():
                data = b"".join(lines)
                put(slot, (data,), len(data))

        return nullcontext(add)

    def ddl(self, step: Ddl, place: int, put: Put) -> None:
        line = ddl_line(step, place)
        put(slot_of_table(*table_of(step), self.slotting.count), (line,), len(line))
