"""Rows as tuples of SQLite's values, and what becomes of a value when its column's type changes. Pure.

Integers and BIT are int, or text if above 2^63-1; DECIMAL text, FLOAT and DOUBLE float, strings str (bytes if they are
not valid UTF-8), binary bytes, times text, ENUM and SET their names, JSON text. NULL is None. A packed tuple is in
marshal's format, in the version whose bytes depend on nothing but the values.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import enum_text, flatten, set_text, to_text
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Key, Literals, Row
from drainer.row.column_type import ColumnType, TypeClass, bit_number, is_utf8, shown_as, small_int, type_class_of
from drainer.row.fast_path import Cells

_MARSHAL_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class SQLiteValues:
    """See row.codec.Format."""

    def rows(self, column_types: Sequence[ColumnType], columns: Sequence[Sequence[Any]]) -> list[Row]:
        return list(
            zip(
                *[
                    self.literals(column_type, values)
                    for column_type, values in zip(column_types, columns, strict=True)
                ],
                strict=True,
            )
        )

    def packed_rows(self, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Any:
        rows = self.rows(column_types, [column.to_pylist() for column in columns])
        return pa.array([self.pack(row) for row in rows], pa.binary())

    def literals(self, column_type: ColumnType, values: Sequence[Any]) -> list[object]:
        show = value_writer(column_type)
        return [None if value is None else show(value) for value in values]

    def key_writer(self, column_types: Sequence[ColumnType]) -> Callable[[Cells], Key]:
        writers = [value_writer(column_type) for column_type in column_types]
        return lambda cells: tuple([write(cell) for write, cell in zip(writers, cells, strict=True)])

    def pack(self, row: Row) -> bytes:
        return marshal.dumps(row, _MARSHAL_VERSION)  # type: ignore[arg-type]

    def unpack(self, packed: bytes) -> Row:
        row: Row = marshal.loads(packed)
        return row

    def split(self, packed: bytes) -> Literals:
        values: Literals = marshal.loads(packed)
        return values


SQLITE_VALUES: Final = SQLiteValues()


def value_writer(column_type: ColumnType) -> Callable[[Any], object]:
    """From a decoded value that is not NULL."""
    kind, type_class = column_type.kind, column_type.type_class
    if type_class is TypeClass.INT:
        return small_int
    if type_class is TypeClass.TEXT:
        return lambda raw: raw.decode() if is_utf8(raw) else raw
    if type_class in (TypeClass.BYTES, TypeClass.DECIMAL):
        return lambda value: value
    if type_class is TypeClass.ENUM:
        return lambda value: enum_text(value, kind)
    if type_class is TypeClass.SET:
        return lambda value: set_text(value, kind)
    if type_class is TypeClass.BIT:
        return lambda value: small_int(bit_number(value, max(kind.flen, 1)))
    show = shown_as(column_type)
    if type_class is TypeClass.FLOAT:
        return lambda value: float(show(value)) + 0.0  # SQLite has no -0.0: it stores 0 and returns 0.0
    return lambda value: show(value).decode()


# Upstream converts every row before a MODIFY COLUMN ends, and writes no binlog for them. If it refuses a conversion,
# there is no job.

Value = int | float | str | bytes | None
Convert = Callable[[Value], Value]

_WHOLE: Final = frozenset({TypeClass.INT, TypeClass.BIT})
_NUMBERS: Final = _WHOLE | {TypeClass.DECIMAL, TypeClass.FLOAT}
_NO_TEXT: Final = _WHOLE | {TypeClass.FLOAT, TypeClass.BYTES}  # what is not stored as the text that TiDB shows
_SCALED: Final = frozenset({TypeClass.DECIMAL, TypeClass.DATETIME, TypeClass.TIME})
_NO_JSON: Final = frozenset({TypeClass.ENUM, TypeClass.SET, TypeClass.DATE})  # they become strings of JSON
_UNSIGNED: Final = FieldType(Tp.LONGLONG, flag=Flag.UNSIGNED)


class CannotConvert(ValueError):
    """A value does not fit the column's new type."""


def converter(old: FieldType, new: FieldType) -> Convert | None:
    """How a value changes; None when it stays as it is. The function raises ValueError or DecodeError."""
    column_type, source = ColumnType.of(new), type_class_of(old)
    target = column_type.type_class
    if source is target and (source not in _SCALED or old.decimal == new.decimal):
        return None
    if {source, target} <= _WHOLE or (target is TypeClass.TEXT and source not in _NO_TEXT):
        return None
    kind = _UNSIGNED if target is TypeClass.BIT else new

    def convert(value: Value) -> Value:
        if value is None:
            return None
        text = to_text(value, old) if isinstance(value, float) else value if isinstance(value, bytes) else str(value)
        if isinstance(text, str) and target in _NUMBERS:
            text = text.strip()
        elif target is TypeClass.JSON and source in _NO_JSON:
            text = json.dumps(text)
        return stored(column_type, flatten(text, kind))

    return convert


def stored(column_type: ColumnType, value: Datum) -> Value:
    """Return a column's value as SQLite stores it. Raises DecodeError."""
    (found,) = SQLITE_VALUES.literals(column_type, [column_type.decoded_value(value)])
    assert found is None or isinstance(found, int | float | str | bytes)
    return found


def noting(column: str, convert: Convert, unconverted: list[str]) -> Convert:
    """Return `convert`, which adds column, value and reason to `unconverted` when it fails: SQLite's own error has
    none of them."""

    def noted(value: Value) -> Value:
        try:
            return convert(value)
        except Exception as error:
            unconverted.append(f"column {column}: {value!r:.100} cannot be converted: {error!r}")
            raise

    return noted
