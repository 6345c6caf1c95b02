"""Converts stored values as TiDB does when MODIFY COLUMN changes a column's type. Pure.

Upstream converts every row before the job ends, and writes no binlog for them. If it refuses a conversion, there is no
job.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten
from binlog.tidb.types import FieldType, Flag, Tp
from binlog.tidb.unflatten import to_text

from drainer.row.column_type import ColumnType, TypeClass, type_class_of
from drainer.sink.sqlite.format import SQLITE_VALUES

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
