"""The type of a column of a destination's row, and its decoded values: for each type class one Python type and one
Arrow type. Pure.

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

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, TIMES, FieldType, Tp


class TypeClass(Enum):
    """Columns that are read and written the same way."""

    INT = "int"
    DECIMAL = "decimal"
    FLOAT = "float"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    DATETIME = "datetime"
    TIME = "time"
    ENUM = "enum"
    SET = "set"
    BIT = "bit"
    JSON = "json"


_SPECIAL_TYPE_CLASSES = {
    Tp.NEWDECIMAL: TypeClass.DECIMAL,
    Tp.DURATION: TypeClass.TIME,
    Tp.ENUM: TypeClass.ENUM,
    Tp.SET: TypeClass.SET,
    Tp.BIT: TypeClass.BIT,
    Tp.JSON: TypeClass.JSON,
}


def type_class_of(kind: FieldType) -> TypeClass:
    """DecodeError for a type that binlogs never carry (VECTOR, GEOMETRY)."""
    tp = kind.tp
    if tp in INTEGERS:
        return TypeClass.INT
    if tp in _SPECIAL_TYPE_CLASSES:
        return _SPECIAL_TYPE_CLASSES[tp]
    if tp in FLOATS:
        return TypeClass.FLOAT
    if tp in TIMES:
        return TypeClass.DATE if tp in (Tp.DATE, Tp.NEWDATE) else TypeClass.DATETIME
    if tp in STRINGS:
        return TypeClass.BYTES if kind.charset == "binary" else TypeClass.TEXT
    raise DecodeError(f"column type {int(tp)}", offset=0, detail="not a type that rows carry")


# The flag of a column's datum in a row (F-01). All other type classes are numbers, signed or not.
_FLAGS = {TypeClass.DECIMAL: 6, TypeClass.FLOAT: 5, TypeClass.TEXT: 2, TypeClass.BYTES: 2, TypeClass.JSON: 10}


def is_signed(kind: FieldType, type_class: TypeClass) -> bool:
    """Whether rows store this type class, one of integers, as signed integers."""
    if type_class is TypeClass.INT:
        return not kind.is_unsigned or kind.tp is Tp.YEAR
    return type_class is TypeClass.TIME


def flag_of(kind: FieldType, type_class: TypeClass) -> int:
    """The flag of the datum in which a row holds such a column."""
    return _FLAGS.get(type_class) or (8 if is_signed(kind, type_class) else 9)


DecodedValue = int | float | str | bytes | None

# All other type classes are numbers.
_TYPES: Final = {
    TypeClass.DECIMAL: pa.string(),
    TypeClass.FLOAT: pa.float64(),
    TypeClass.TEXT: pa.binary(),
    TypeClass.BYTES: pa.binary(),
    TypeClass.JSON: pa.binary(),
}


def decoded_type(kind: FieldType, type_class: TypeClass) -> Any:
    """The Arrow type of a column's decoded values."""
    return _TYPES.get(type_class) or (pa.int64() if is_signed(kind, type_class) else pa.uint64())


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
    if type_class in _TYPES or not isinstance(value, int):
        raise DecodeError(f"{kind.mysql_name} value", offset=0, detail=f"stored as {type(value).__name__}")
    return int(value)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type that a column had when a row was written. `type_class` follows from `kind`, and is kept because
    everything asks for it."""

    kind: FieldType
    type_class: TypeClass

    @classmethod
    def of(cls, kind: FieldType) -> ColumnType:
        """DecodeError for a type that rows cannot carry."""
        return cls(kind, type_class_of(kind))

    def decoded_value(self, value: Datum) -> DecodedValue:
        """DecodeError when it is no value of the column's type."""
        return None if value is None else decoded_value(self.kind, self.type_class, value)

    @property
    def decoded_type(self) -> Any:
        """The Arrow type of a column of its decoded values."""
        return decoded_type(self.kind, self.type_class)
