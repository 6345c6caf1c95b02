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

NULL is None. Values are not checked when they are decoded: a month 15, or a number beyond a SET's names, is found when
the value is written. For keys and quoted literals, functions convert single values to text or numbers; changes/texts.py
does the same with complete columns. They raise DecodeError, which names no row, for a value that its column's type
cannot have.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Final

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from binlog.tidb.json import decode_text as json_text
from binlog.tidb.time import date_text, datetime_text, duration_text
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
        """DecodeError when the value is stored like those of another type class."""
        type_class = self.type_class
        if value is None:
            return None
        if type_class is TypeClass.DECIMAL and isinstance(value, Decimal):
            return str(value)
        if type_class is TypeClass.FLOAT and isinstance(value, float):
            return value
        if type_class is TypeClass.JSON and isinstance(value, BinaryJSON):
            return bytes(value)
        is_bytes = isinstance(value, bytes) and not isinstance(value, BinaryJSON)
        if type_class in (TypeClass.TEXT, TypeClass.BYTES) and is_bytes:
            return value
        if type_class in _TYPES or not isinstance(value, int):
            raise DecodeError(f"{self.kind.mysql_name} value", offset=0, detail=f"stored as {type(value).__name__}")
        return int(value)

    @property
    def decoded_type(self) -> Any:
        """The Arrow type of a column of its decoded values."""
        return decoded_type(self.kind, self.type_class)


_float32 = struct.Struct("<f")
FLOAT_MAX = 3.4028234663852886e38
TEXTS_MAX = 65_536  # of dates, and of times, which repeat

NUMBERS = frozenset({TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT})


def is_utf8(text: bytes) -> bool:
    """Whether a server reads the bytes as utf8mb4 (Python's decoder refuses surrogates and overlong forms too)."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def double_text(value: float) -> str:
    """Shortest digits that give the same double."""
    if not isfinite(value):
        raise DecodeError("double", offset=0, detail=f"{value} is no column value")
    return repr(value)


def float_text(value: float) -> str:
    """Shortest digits that give the same single: read as a double and rounded, as MySQL and MariaDB do."""
    return _float_text(value) if value else repr(value)  # 0.0 and -0.0 are one key of a cache


@lru_cache(maxsize=4096)
def _float_text(value: float) -> str:
    if not isfinite(value):
        raise DecodeError("float", offset=0, detail=f"{value} is no column value")
    try:
        packed = _float32.pack(value)
    except OverflowError:
        raise DecodeError("float", offset=0, detail=f"{value} does not fit 4 bytes") from None
    for digits in range(6, 10):
        text = repr(float(f"{value:.{digits}g}"))
        # The largest single's short forms are beyond it, and servers refuse them.
        if abs(float(text)) <= FLOAT_MAX and _float32.pack(float(text)) == packed:
            return text
    return repr(value)


def enum_index(value: int, count: int) -> int:
    """0 (the error value) for an index beyond the names, as TiDB shows it (F-01)."""
    return value if 0 <= value <= count else 0


def set_bits(value: int, count: int) -> int:
    if not 0 <= value < 1 << count:
        raise DecodeError("SET", offset=0, detail=f"invalid number {value} for a set of {count}")
    return value


def bit_number(value: int, width: int) -> int:
    if not 0 <= value < 1 << width:
        raise DecodeError("bit value", offset=0, detail=f"{value} does not fit BIT({width})")
    return value


def small_int(value: int) -> int | str:
    """For SQLite, whose integers end at 2^63-1: larger ones are text."""
    return value if value <= 0x7FFF_FFFF_FFFF_FFFF else str(value)


@lru_cache(maxsize=TEXTS_MAX)
def _date(packed: int) -> bytes:
    return date_text(packed).encode()


@lru_cache(maxsize=TEXTS_MAX)
def _datetime(packed: int, fsp: int) -> bytes:
    return datetime_text(packed, fsp).encode()


def _as_it_is(value: Any) -> Any:
    return value


def shown_as(column_type: ColumnType) -> Callable[[Any], Any]:
    """Return a function that converts a decoded value that is not NULL: NUMBERS to the number, BYTES to hexadecimal
    digits, all others to the text's bytes."""
    return _OF_TYPE_CLASS[column_type.type_class](column_type.kind)


def _float(kind: FieldType) -> Callable[[Any], bytes]:
    show = float_text if kind.tp is Tp.FLOAT else double_text
    return lambda value: show(value).encode()


def _datetimes(kind: FieldType) -> Callable[[Any], bytes]:
    fsp = kind.fsp
    return lambda packed: _datetime(packed, fsp)


def _duration(kind: FieldType) -> Callable[[Any], bytes]:
    fsp = kind.fsp
    return lambda value: duration_text(value, fsp).encode()


# A JSON string may hold bytes that are no UTF-8; the reader shows them as \ufffd, so encoding never fails.
_OF_TYPE_CLASS: dict[TypeClass, Callable[[FieldType], Callable[[Any], Any]]] = {
    TypeClass.INT: lambda kind: _as_it_is,
    TypeClass.TEXT: lambda kind: _as_it_is,
    TypeClass.BYTES: lambda kind: hexlify,
    TypeClass.DECIMAL: lambda kind: str.encode,
    TypeClass.FLOAT: _float,
    TypeClass.JSON: lambda kind: lambda value: json_text(value)[0].encode(),
    TypeClass.DATE: lambda kind: _date,
    TypeClass.DATETIME: _datetimes,
    TypeClass.TIME: _duration,
    TypeClass.ENUM: lambda kind: partial(enum_index, count=len(kind.elems)),
    TypeClass.SET: lambda kind: partial(set_bits, count=len(kind.elems)),
    TypeClass.BIT: lambda kind: partial(bit_number, width=max(kind.flen, 1)),
}
