"""Families of column types: columns of one family are read and written the same way."""

from __future__ import annotations

from enum import Enum

from binlog.errors import DecodeError
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, TIMES, FieldType, Tp


class Family(Enum):
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


_SPECIAL_FAMILIES = {
    Tp.NEWDECIMAL: Family.DECIMAL,
    Tp.DURATION: Family.TIME,
    Tp.ENUM: Family.ENUM,
    Tp.SET: Family.SET,
    Tp.BIT: Family.BIT,
    Tp.JSON: Family.JSON,
}


def family_of(kind: FieldType) -> Family:
    """DecodeError for a type that binlogs never carry (VECTOR, GEOMETRY)."""
    tp = kind.tp
    if tp in INTEGERS:
        return Family.INT
    if tp in _SPECIAL_FAMILIES:
        return _SPECIAL_FAMILIES[tp]
    if tp in FLOATS:
        return Family.FLOAT
    if tp in TIMES:
        return Family.DATE if tp in (Tp.DATE, Tp.NEWDATE) else Family.DATETIME
    if tp in STRINGS:
        return Family.BYTES if kind.charset == "binary" else Family.TEXT
    raise DecodeError(f"column type {int(tp)}", offset=0, detail="not a type that rows carry")


# The flag of a column's datum in a row (F-01); INT depends on the sign.
_FLAGS = {
    Family.DECIMAL: 6,
    Family.FLOAT: 5,
    Family.TEXT: 2,
    Family.BYTES: 2,
    Family.DATE: 9,
    Family.DATETIME: 9,
    Family.TIME: 8,
    Family.ENUM: 9,
    Family.SET: 9,
    Family.BIT: 9,
    Family.JSON: 10,
}


def is_signed(kind: FieldType, family: Family) -> bool:
    """Whether rows store this family, one of integers, as signed integers."""
    if family is Family.INT:
        return not kind.is_unsigned or kind.tp is Tp.YEAR
    return family is Family.TIME


def flag_of(kind: FieldType, family: Family) -> int:
    """The flag of the datum in which a row holds such a column."""
    if family is Family.INT:
        return 8 if is_signed(kind, family) else 9
    return _FLAGS[family]
