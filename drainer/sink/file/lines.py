"""Changes and DDLs as lines of JSON (docs/jsonl.md), converted by whole columns; and parts, the files of their own in
which executors write the lines of a batch. The driver commits those that the receipts name, and they get a file's name;
all others are removed."""

from __future__ import annotations

import json
import math
import os
import re
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger
from binlog.tidb.flatten import enum_text, set_text
from binlog.tidb.types import FieldType

from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.json_texts import json_texts
from drainer.changes.stream import in_order
from drainer.changes.texts import text_of
from drainer.protocol.errors import converted
from drainer.row.column_type import ColumnType, TypeClass
from drainer.schema.steps import Ddl
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.file.files import Add, ByTable, Current, FileFormat, Notes, Put, of_disk, slot_of_table, table_of

# Written as drainer/changes/texts.py shows them, all but floats between quotes.
_SHOWN: Final = frozenset({TypeClass.DECIMAL, TypeClass.FLOAT, TypeClass.DATE, TypeClass.DATETIME, TypeClass.TIME})
Text = Callable[[Any], str]  # of a decoded value that is not NULL: its JSON


def lines_by_slot(segment: ChangeSegment, slotting: ByTable) -> dict[int, list[bytes]]:
    """The lines of each slot that has any, in upstream's order. Raises EncodeError naming column and commit_ts."""
    made = [_lines(changes) for changes in segment.changes]
    slots = [slotting.slots_of(changes, slotting.count)[0].tolist() for changes in segment.changes]
    found: dict[int, list[bytes]] = {}
    for of, row in in_order(segment):
        found.setdefault(slots[of][row], []).append(made[of][row])
    return found


def lines_in_order(segment: ChangeSegment) -> Iterator[bytes]:
    """All lines, in upstream's order."""
    made = [_lines(changes) for changes in segment.changes]
    for of, row in in_order(segment):
        yield made[of][row]


def ddl_line(step: Ddl, place: int) -> bytes:
    """`place`: the number of earlier DDLs with the same commit_ts; DDLs that run early share a commit_ts."""
    return (json.dumps(ddl_row(step, place)) + "\n").encode()


def ddl_row(step: Ddl, place: int) -> dict[str, object]:
    """Return what files have of a DDL."""
    schema, table = table_of(step)
    return {
        "commit_ts": step.commit_ts,
        "start_ts": step.job.start_ts,
        "place": place,
        "kind": "ddl",
        "schema": schema,
        "table": table,
        "job_id": step.job.id,
        "early": step.early,
        "query": step.query,
        "sql": list(step.sql),
    }


def _lines(changes: Changes) -> list[bytes]:
    shape = changes.shape
    kind = changes.kind.name.lower()
    head = f'"kind":"{kind}","schema":{json.dumps(shape.schema)},"table":{json.dumps(shape.table)}'
    old, new = _images(changes, changes.old), _images(changes, changes.new)
    stamps = zip(changes.commit_ts.tolist(), changes.start_ts.tolist(), changes.sequence.tolist(), strict=True)
    return [
        f'{{"commit_ts":{commit_ts},"start_ts":{start_ts},"place":{place},{head},"old":{before},"new":{after}}}\n'.encode()
        for (commit_ts, start_ts, place), before, after in zip(stamps, old, new, strict=True)
    ]


def _images(changes: Changes, columns: Columns | None) -> list[str]:
    """A JSON object for each row."""
    if columns is None:
        return ["null"] * len(changes)
    names = [json.dumps(name) for name in changes.shape.columns]
    values = []
    for name, form, column in zip(changes.shape.columns, changes.column_types, columns, strict=True):
        where = f"column `{changes.shape.schema}`.`{changes.shape.table}`.`{name}`"
        values.append(converted(where, changes.commit_ts, partial(texts_of, form), column))
    return ["{" + ",".join(map("{}:{}".format, names, row)) + "}" for row in zip(*values, strict=True)]


def texts_of(column_type: ColumnType, column: Any) -> list[str]:
    """Return one column's decoded values (drainer/row/column_type.py) as JSON texts."""
    type_class = column_type.type_class
    if type_class in _SHOWN:
        shape = "{}" if type_class is TypeClass.FLOAT else '"{}"'
        shown = text_of(column_type, column).to_pylist()
        return ["null" if text is None else shape.format(text.decode()) for text in shown]
    if type_class is TypeClass.JSON:
        return ["null" if text is None else _string(text.decode()) for text in json_texts(column).to_pylist()]
    text = _text(column_type.kind, type_class)
    return ["null" if value is None else text(value) for value in column.to_pylist()]


def _text(kind: FieldType, type_class: TypeClass) -> Text:
    if type_class in (TypeClass.INT, TypeClass.BIT):
        return str
    if type_class is TypeClass.BYTES:
        return lambda value: f'"{b64encode(value).decode()}"'
    if type_class is TypeClass.ENUM:
        return partial(_enum, kind)
    if type_class is TypeClass.SET:
        return str if "" in kind.elems else lambda value: _string(set_text(value, kind))
    return lambda value: _string(value.decode(errors="surrogateescape"))


def _enum(kind: FieldType, value: int) -> str:
    """Return an ENUM value as its name. 0, which is no element and has the name "", and an element "" are numbers."""
    name = enum_text(value, kind)
    return _string(name) if name else str(value)


def _string(text: str) -> str:
    """Bytes that are not UTF-8 become lone surrogates, which JSON can only have as escapes."""
    shown = json.dumps(text, ensure_ascii=False)
    try:
        shown.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return shown


_SUFFIX: Final = ".part"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LineSlotWriter:
    """See base.SlotWriter. Every attempt has its own file names, so that attempts, also of an older driver, do not
    conflict. A receipt's `detail`: the parts and their lengths."""

    directory: Path
    epoch: int
    intent: Intent
    rotate_bytes: int

    @property
    def stem(self) -> str:
        """Return the text that is in the names of all parts of this batch by this driver."""
        return f"{self.intent.until_ts}-{self.epoch}"

    def write(self, slot: int, segment: ChangeSegment, retry_for_s: float = math.inf) -> Receipt:
        parts = write_parts(self.directory, f"{slot:03d}-{self.stem}", lines_in_order(segment), self.rotate_bytes)
        return Receipt(slot, segment.change_count, len(parts), 0, json.dumps(parts))


def write_parts(directory: Path, stem: str, lines: Iterable[bytes], rotate_bytes: int) -> list[tuple[str, int]]:
    """Write lines as synced parts with unique names; returns (name, length) of each. If the disk refuses one, all are
    removed, so that further attempts do not fill the disk. Raises DestinationDown."""
    found: list[tuple[str, int]] = []
    begun: list[Path] = []
    try:
        for data in _cut(lines, rotate_bytes):
            name = f"{stem}-{len(found)}-{uuid.uuid4().hex}{_SUFFIX}"
            begun.append(directory / name)
            with begun[-1].open("xb") as file:
                file.write(data)
                crash_point("file.part_written")
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
            f"the driver must see one directory under this path; or set distributed = false in [syncer]"
        ) from error
    if found != length:
        raise DestinationRefused(f"{directory / name} has {found} bytes, and an executor has written {length}")


def rename_parts(directory: Path, renames: Sequence[tuple[str, str]]) -> None:
    """May be repeated. Raises DestinationRefused if neither a part nor its file exists."""
    if not renames:
        return
    with of_disk(directory):
        for part, name in renames:
            try:
                (directory / part).rename(directory / name)
            except FileNotFoundError as error:
                if not (directory / name).exists():
                    raise DestinationRefused(
                        f"{directory / name} is committed, and neither it nor {part} is there: restore it, or empty "
                        f"the directory and start anew"
                    ) from error
            crash_point("file.renamed")
        sync_directory(directory)


def remove_parts(directory: Path, stem: str = "*-*") -> None:
    """Remove the parts of other attempts of a committed batch, by default of all batches."""
    _remove(directory.glob(f"[0-9][0-9][0-9]-{stem}-*{_SUFFIX}"))


def _remove(parts: Iterable[Path]) -> None:
    """Remove parts; an error is only logged, because the parts do no harm and the next start tries again."""
    try:
        for path in parts:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove a file that was not committed; the next start tries again", error=str(error))


# `000-000000012.jsonl` is file 12 of slot 0.
_NAME: Final = re.compile(r"(\d{3})-(\d{9,})\.jsonl")


def _name(slot: int, number: int) -> str:
    return f"{slot:03d}-{number:09d}.jsonl"


class JsonlFormat(FileFormat):
    """See files.FileFormat. `files`: how many are written at the same time."""

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
