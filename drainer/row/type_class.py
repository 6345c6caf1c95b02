"""Type classes: columns of one class are read and written the same way."""

from __future__ import annotations

from enum import Enum

from binlog.errors import DecodeError
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


# The flag of a column's datum in a row (F-01); INT depends on the sign.
_FLAGS = {
    TypeClass.DECIMAL: 6,
    TypeClass.FLOAT: 5,
    TypeClass.TEXT: 2,
    TypeClass.BYTES: 2,
    TypeClass.DATE: 9,
    TypeClass.DATETIME: 9,
    TypeClass.TIME: 8,
    TypeClass.ENUM: 9,
    TypeClass.SET: 9,
    TypeClass.BIT: 9,
    TypeClass.JSON: 10,
}


def is_signed(kind: FieldType, type_class: TypeClass) -> bool:
    """Whether rows store this type class, one of integers, as signed integers."""
    if type_class is TypeClass.INT:
        return not kind.is_unsigned or kind.tp is Tp.YEAR
    return type_class is TypeClass.TIME


def flag_of(kind: FieldType, type_class: TypeClass) -> int:
    """The flag of the datum in which a row holds such a column."""
    if type_class is TypeClass.INT:
        return 8 if is_signed(kind, type_class) else 9
    return _FLAGS[type_class]
