"""Converts single decoded values to text or numbers, for keys and for quoted literals. Pure.

changes/texts.py does the same with complete columns; this module is for few rows. Every function raises DecodeError,
which names no row, for a value that its column's type cannot have.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from functools import lru_cache, partial
from math import isfinite
from typing import Any

from binlog.errors import DecodeError
from binlog.tidb.json import decode_text as json_text
from binlog.tidb.time import date_text, datetime_text, duration_text
from binlog.tidb.types import FieldType, Tp

from drainer.row.column_type import ColumnType, TypeClass

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
