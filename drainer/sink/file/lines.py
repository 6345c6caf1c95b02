"""Changes and DDLs as lines of JSON (docs/jsonl.md). Pure; converts whole columns."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from binlog.tidb.types import FieldType
from binlog.tidb.unflatten import enum_text, set_text

from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.json_texts import json_texts
from drainer.changes.stream import in_order
from drainer.changes.texts import text_of
from drainer.protocol.errors import converted
from drainer.row.column_type import ColumnType, TypeClass
from drainer.schema.steps import Ddl
from drainer.sink.file.format import ByTable, table_of

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
