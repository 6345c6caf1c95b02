"""Images of rows as JSON objects, `"name":{"t":3,"h":true,"f":11,"v":1},…`. What is the same for all rows of a table is
built once for the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError

from drainer.changes.decode import Columns
from drainer.protocol.errors import EncodeError
from drainer.protocol.json_text import json_string
from drainer.protocol.open.column_values import Values, is_quoted, values_of
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Column, ColumnFlag, Table


def constant(text: bytes) -> Any:
    return pa.scalar(text, pa.binary())


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate the parts of each row. At least one part must be an array. NULL becomes `null`."""
    return pc.binary_join_element_wise(*parts, constant(b""), null_handling="replace", null_replacement="null")


class BadColumn(Exception):
    """A value that the column cannot hold. The row with the value is not known yet."""

    def __init__(self, code: ColumnCode, error: DecodeError) -> None:
        super().__init__(code, error)
        self.code = code
        self.error = error

    def of(self, changes: RowChanges) -> EncodeError:
        """Return the EncodeError that names the first row with such a value."""
        table, place = changes.table, self.code.place
        for row in range(len(changes)):
            for image in (changes.new, changes.old):
                try:
                    if image is not None:
                        self.code.values(image[place].slice(row, 1))
                except DecodeError as error:
                    return _named(table, self.code, int(changes.commit_ts[row]), error)
        return _named(table, self.code, int(changes.commit_ts[0]), self.error)


def _named(table: Table, code: ColumnCode, commit_ts: int, error: DecodeError) -> EncodeError:
    name = table.columns[code.place].name
    return EncodeError(
        f"open-protocol: `{table.schema}`.`{table.name}`, column `{name}`, commit_ts {commit_ts}: {error}"
    )


@dataclass(frozen=True, slots=True)
class ColumnCode:
    """One column, compiled. `head`: the text in front of its values."""

    place: int
    head: bytes
    quoted: bool
    values: Values

    def of(self, columns: Columns) -> Any:
        """Convert the column's values. Raises BadColumn."""
        try:
            return self.values(columns[self.place])
        except DecodeError as error:
            raise BadColumn(self, error) from None


def compiled(table: Table, zone: tzinfo) -> tuple[ColumnCode, ...]:
    """Return the compiled columns in the order in which they are written: by the bytes of their names."""
    order = sorted(range(len(table.columns)), key=lambda place: table.columns[place].name)
    return tuple(_code(place, table.columns[place], zone) for place in order)


def _code(place: int, column: Column, zone: tzinfo) -> ColumnCode:
    """Compile a column. Readers parse the value by its flags, so the BINARY flag comes from the type under which the
    row was written, which may be older than the table's."""
    kind = column.form.kind
    flags = column.flags & ~ColumnFlag.BINARY | (ColumnFlag.BINARY if kind.charset == "binary" else 0)
    handle = '"h":true,' if column.in_handle else ""
    head = f'{json_string(column.name)}:{{"t":{int(kind.tp)},{handle}"f":{int(flags)},"v":'
    return ColumnCode(place, head.encode(), is_quoted(column.form), values_of(column.form, zone))


def image_parts(codes: Sequence[ColumnCode], columns: Columns, begin: bytes, end: bytes) -> list[Any]:
    """Return the parts from which `joined` builds an object. `begin` and `end`: the texts that open and close it."""
    parts: list[Any] = []
    before = begin
    for code in codes:
        values = code.of(columns)
        quoted = code.quoted and not values.null_count
        if code.quoted and values.null_count:
            values = pc.binary_join_element_wise(constant(b'"'), values, constant(b'"'), constant(b""))
        parts += [constant(before + code.head + b'"' if quoted else before + code.head), values]
        before = b'"},' if quoted else b"},"
    return [*parts, constant(before.removesuffix(b",") + end)]


def changed_parts(codes: Sequence[ColumnCode], old: Columns, new: Columns) -> list[Any]:
    """Return the parts of an object with only the old values that changed: `,"p":{…}`, or nothing if none changed.

    No row's parts are all NULL: Arrow 26 loses such rows if it is told to skip NULLs.
    """
    found = []
    for code in codes:
        changed = _differ(old[code.place], new[code.place])
        if pc.any(changed).as_py():
            whole = joined([*image_parts([code], old, b"", b""), constant(b",")])
            found.append(pc.if_else(changed, whole, constant(b"")))
    if not found:
        return []
    members = joined(found)
    some = joined([constant(b',"p":{'), pc.binary_slice(members, 0, -1), constant(b"}")])
    return [pc.if_else(pc.equal(pc.binary_length(members), 0), constant(b""), some)]


def _differ(left: Any, right: Any) -> Any:
    """Return which values differ. NULL equals only NULL."""
    same = pc.if_else(left.is_null(), right.is_null(), pc.fill_null(pc.equal(left, right), False))
    return pc.invert(same)
