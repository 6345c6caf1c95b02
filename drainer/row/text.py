"""Converts single decoded values to text or numbers, for keys and for quoted literals. Pure.

changes/texts.py does the same with complete columns; this module is for few rows. Every function raises DecodeError,
which names no row, for a value that its column's type cannot have.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from typing import Any

from binlog.tidb.json import decode_text as json_text
from binlog.tidb.time import date_text, datetime_text, duration_text
from binlog.tidb.types import FieldType, Tp

from drainer.row.column_type import ColumnType
from drainer.row.scalar import bit_number, double_text, enum_index, float_text, set_bits
from drainer.row.type_class import TypeClass

TEXTS_MAX = 65_536  # entries of one cache of dates or times

NUMBERS = frozenset({TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT})


class TimeTexts(dict[int, bytes]):
    """Texts of packed times; dates repeat. `fsp` digits of a second's fraction; None for a DATE."""

    __slots__ = ("fsp",)

    def __init__(self, fsp: int | None) -> None:
        super().__init__()
        self.fsp = fsp

    def __missing__(self, packed: int) -> bytes:
        text = date_text(packed) if self.fsp is None else datetime_text(packed, self.fsp)
        if len(self) >= TEXTS_MAX:
            self.clear()
        found = self[packed] = text.encode()
        return found


_DATES = TimeTexts(None)
_DATETIMES = tuple(TimeTexts(fsp) for fsp in range(7))


def _as_it_is(value: Any) -> Any:
    return value


def shown_as(column_type: ColumnType) -> Callable[[Any], Any]:
    """Return a function that converts a decoded value that is not NULL: NUMBERS to the number, BYTES to hexadecimal
    digits, all others to the text's bytes."""
    return _OF_TYPE_CLASS[column_type.type_class](column_type.kind)


def _float(kind: FieldType) -> Callable[[Any], bytes]:
    show = float_text if kind.tp is Tp.FLOAT else double_text
    return lambda value: show(value).encode()


def _duration(kind: FieldType) -> Callable[[Any], bytes]:
    fsp = kind.fsp
    return lambda value: duration_text(value, fsp).encode()


def _enum(kind: FieldType) -> Callable[[Any], int]:
    count = len(kind.elems)
    return lambda value: enum_index(value, count)


def _set(kind: FieldType) -> Callable[[Any], int]:
    count = len(kind.elems)
    return lambda value: set_bits(value, count)


def _bit(kind: FieldType) -> Callable[[Any], int]:
    width = max(kind.flen, 1)
    return lambda value: bit_number(value, width)


# A JSON string may hold bytes that are no UTF-8; the reader shows them as \ufffd, so encoding never fails.
_OF_TYPE_CLASS: dict[TypeClass, Callable[[FieldType], Callable[[Any], Any]]] = {
    TypeClass.INT: lambda kind: _as_it_is,
    TypeClass.TEXT: lambda kind: _as_it_is,
    TypeClass.BYTES: lambda kind: hexlify,
    TypeClass.DECIMAL: lambda kind: str.encode,
    TypeClass.FLOAT: _float,
    TypeClass.JSON: lambda kind: lambda value: json_text(value)[0].encode(),
    TypeClass.DATE: lambda kind: _DATES.__getitem__,
    TypeClass.DATETIME: lambda kind: _DATETIMES[kind.fsp].__getitem__,
    TypeClass.TIME: _duration,
    TypeClass.ENUM: _enum,
    TypeClass.SET: _set,
    TypeClass.BIT: _bit,
}
