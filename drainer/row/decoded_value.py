"""Decoded values: for each type class one Python type and one Arrow type. Pure.

| type class | Python | Arrow |
|---|---|---|
| INT | int | int64; uint64 where the column is unsigned (a YEAR is int64) |
| DECIMAL | str: canonical text with exactly the row's fractional digits | string |
| FLOAT | float, also of a FLOAT | double |
| TEXT, BYTES | bytes as stored; TEXT need not be UTF-8 | binary |
| DATE, DATETIME | int: TiDB's packed time, 0 for the zero date; a TIMESTAMP in UTC | uint64 |
| TIME | int: nanoseconds | int64 |
| ENUM, SET, BIT | int: the number | uint64 |
| JSON | bytes: type code and body | binary |

NULL is None. Values are not checked here: a month 15, or a number beyond a SET's names, is found when the value is
written.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from binlog.tidb.types import FieldType

from drainer.row.type_class import TypeClass, is_signed

DecodedValue = int | float | str | bytes | None

_TYPES: Final = {
    TypeClass.DECIMAL: pa.string(),
    TypeClass.FLOAT: pa.float64(),
    TypeClass.TEXT: pa.binary(),
    TypeClass.BYTES: pa.binary(),
    TypeClass.DATE: pa.uint64(),
    TypeClass.DATETIME: pa.uint64(),
    TypeClass.TIME: pa.int64(),
    TypeClass.ENUM: pa.uint64(),
    TypeClass.SET: pa.uint64(),
    TypeClass.BIT: pa.uint64(),
    TypeClass.JSON: pa.binary(),
}
_OTHER_THAN_INTEGERS: Final = frozenset(
    {TypeClass.DECIMAL, TypeClass.FLOAT, TypeClass.TEXT, TypeClass.BYTES, TypeClass.JSON}
)


def decoded_type(kind: FieldType, type_class: TypeClass) -> Any:
    """The Arrow type of a column's decoded values."""
    if type_class is TypeClass.INT:
        return pa.int64() if is_signed(kind, type_class) else pa.uint64()
    return _TYPES[type_class]


def decoded_value(kind: FieldType, type_class: TypeClass, value: Datum) -> DecodedValue:
    """Return the decoded value of one value that is not NULL. Raises DecodeError if the value is stored like those of
    another type class."""
    if type_class is TypeClass.DECIMAL and isinstance(value, Decimal):
        return str(value)
    if type_class is TypeClass.FLOAT and isinstance(value, float):
        return value
    if type_class is TypeClass.JSON and isinstance(value, BinaryJSON):
        return bytes(value)
    if (
        type_class in (TypeClass.TEXT, TypeClass.BYTES)
        and isinstance(value, bytes)
        and not isinstance(value, BinaryJSON)
    ):
        return value
    if type_class in _OTHER_THAN_INTEGERS or not isinstance(value, int):
        raise DecodeError(f"{kind.mysql_name} value", offset=0, detail=f"stored as {type(value).__name__}")
    return int(value)
