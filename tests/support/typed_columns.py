"""A table with a column of every type, values that hypothesis draws for it, and what readers should find in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import tzinfo

import numpy as np
from binlog.tidb.json import decode_text
from binlog.tidb.time import Civil, date_text, datetime_text, duration_text, pack, timestamp_text
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.protocol.event import Value
from drainer.protocol.table import Column, Table
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass
from tests.support.row_changes import make_table
from tests.support.type_case import decoded_value
from tests.unit.tidb.strategies import binary_json, finite

UNSIGNED = Flag.UNSIGNED
NAMES = ("a", "b'c", "d,e", "ü<&>")


def text_type(tp: Tp, length: int = -1, flag: int = 0) -> FieldType:
    return FieldType(tp, flag, length, charset="utf8mb4", collate="utf8mb4_bin")


COLUMNS: tuple[tuple[str, FieldType], ...] = (
    ("id", FieldType(Tp.LONGLONG, Flag.NOT_NULL, 20)),
    ("tiny", FieldType(Tp.TINY, 0, 4)),
    ("tiny_u", FieldType(Tp.TINY, UNSIGNED, 3)),
    ("short", FieldType(Tp.SHORT, 0, 6)),
    ("short_u", FieldType(Tp.SHORT, UNSIGNED, 5)),
    ("medium", FieldType(Tp.INT24, 0, 9)),
    ("medium_u", FieldType(Tp.INT24, UNSIGNED, 8)),
    ("int_u", FieldType(Tp.LONG, UNSIGNED, 10)),
    ("big_u", FieldType(Tp.LONGLONG, UNSIGNED, 20)),
    ("year", FieldType(Tp.YEAR, UNSIGNED | Flag.ZEROFILL, 4)),
    ("single", FieldType(Tp.FLOAT, 0, 12)),
    ("double", FieldType(Tp.DOUBLE, 0, 22)),
    ("dec", FieldType(Tp.NEWDECIMAL, 0, 20, 4)),
    ("name", text_type(Tp.VARCHAR, 32)),
    ("fixed", text_type(Tp.STRING, 8)),
    ("longer", text_type(Tp.BLOB)),
    ("varbin", FieldType(Tp.VARCHAR, Flag.BINARY, 16)),
    ("bin", FieldType(Tp.STRING, Flag.BINARY, 4)),
    ("blob", FieldType(Tp.LONG_BLOB, Flag.BINARY)),
    ("day", FieldType(Tp.DATE, 0, 10)),
    ("at", FieldType(Tp.DATETIME, 0, 19, 0)),
    ("at_us", FieldType(Tp.DATETIME, 0, 26, 6)),
    ("stamp", FieldType(Tp.TIMESTAMP, 0, 19, 0)),
    ("stamp_ms", FieldType(Tp.TIMESTAMP, 0, 23, 3)),
    ("took", FieldType(Tp.DURATION, 0, 10, 0)),
    ("took_us", FieldType(Tp.DURATION, 0, 17, 6)),
    ("choice", FieldType(Tp.ENUM, charset="utf8mb4", collate="utf8mb4_bin", elems=NAMES)),
    ("several", FieldType(Tp.SET, charset="utf8mb4", collate="utf8mb4_bin", elems=("x", "y", "z"))),
    ("bit", FieldType(Tp.BIT, UNSIGNED, 1)),
    ("bits", FieldType(Tp.BIT, UNSIGNED, 60)),
    ("doc", FieldType(Tp.JSON)),
)

# Two values of each column: bytes as they are, others as tests.support.type_case writes them.
TWO_VALUES: dict[str, tuple[str | bytes, str | bytes]] = {
    "tiny": ("-128", "127"),
    "tiny_u": ("0", "255"),
    "short": ("-32768", "1"),
    "short_u": ("65535", "1"),
    "medium": ("-8388608", "1"),
    "medium_u": ("16777215", "1"),
    "int_u": ("4294967295", "1"),
    "big_u": ("18446744073709551615", "18446744073709551614"),
    "year": ("0", "2155"),
    "single": ("0.10000000149011612", "0.10000000894069672"),
    "double": ("0.1", "0.10000000000000002"),
    "dec": ("-1.5000", "-1.5001"),
    "name": (b"a", b"A"),
    "fixed": (b"", "\u00e9'".encode()),
    "longer": (b"x\\y", "\U0001f600".encode()),
    "varbin": (b"\0", b"\0\0"),
    "bin": (b"abc\xff", b"abcd"),
    "blob": (b"\xff", b""),
    "day": ("0000-00-00", "9999-12-31"),
    "at": ("2020-01-01 00:00:00", "2020-01-01 00:00:01"),
    "at_us": ("2020-01-01 00:00:00.000001", "2020-01-01 00:00:00.000002"),
    "stamp": ("2020-01-01 00:00:00", "2038-01-19 03:14:07"),
    "stamp_ms": ("2020-01-01 00:00:00.001", "2020-01-01 00:00:00.002"),
    "took": ("-838:59:59", "00:00:00"),
    "took_us": ("00:00:00.000001", "-00:00:00.000001"),
    "choice": ("0", "4"),
    "several": ("0", "7"),
    "bit": ("0", "1"),
    "bits": ("1152921504606846975", "1152921504606846974"),
    "doc": ('{"a": 1}', '{"a": 1.5}'),
}


def typed_row(number: int, second: Sequence[str] = ()) -> list[DecodedValue]:
    """A row with the first of the two values of each column, but of the columns `second`."""
    chosen = [(kind, TWO_VALUES[name][name in second]) for name, kind in COLUMNS[1:]]
    return [number, *(one if isinstance(one, bytes) else decoded_value(kind, one) for kind, one in chosen)]


_INT_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.encode)
_single = finite.filter(lambda value: abs(value) < 3e38).map(
    lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
)


def typed_table(*, name: str = "everything", version: int = 1) -> Table:
    return make_table("typed", name, COLUMNS, primary=["id"], version=version)


@st.composite
def _times(draw: st.DrawFn, fsp: int) -> int:
    micro = draw(st.integers(0, 10**fsp - 1)) * 10 ** (6 - fsp)
    when = Civil(
        draw(st.integers(1970, 2037)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 28)),
        draw(st.integers(0, 23)),
        draw(st.integers(0, 59)),
        draw(st.integers(0, 59)),
        micro,
    )
    return pack(when)


def decoded_values_of(kind: FieldType) -> st.SearchStrategy[DecodedValue]:
    """Values that are not NULL."""
    type_class = ColumnType.of(kind).type_class
    if kind.tp is Tp.YEAR:
        return st.just(0) | st.integers(1901, 2155)
    if type_class is TypeClass.INT:
        bits = _INT_BITS[kind.tp]
        return st.integers(0, 2**bits - 1) if kind.is_unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if type_class is TypeClass.FLOAT:
        return _single if kind.tp is Tp.FLOAT else finite
    if type_class is TypeClass.DECIMAL:
        return st.integers(-(10**19), 10**19).map(
            lambda n: f"{'-' if n < 0 else ''}{abs(n) // 10000}.{abs(n) % 10000:04d}"
        )
    if type_class is TypeClass.DATE:
        return st.just(0) | _times(0).map(lambda packed: packed >> 41 << 41)
    if type_class is TypeClass.DATETIME:
        return st.just(0) | _times(kind.fsp)
    if type_class is TypeClass.TIME:
        step = 10 ** (9 - kind.fsp)
        return st.integers(-838 * 3600, 838 * 3600).map(lambda s: s * 10**9) | st.integers(0, 10**9 // step - 1).map(
            lambda n: n * step
        )
    if type_class is TypeClass.ENUM:
        return st.integers(0, len(kind.elems))
    if type_class is TypeClass.SET:
        return st.integers(0, 2 ** len(kind.elems) - 1)
    if type_class is TypeClass.BIT:
        return st.integers(0, 2**kind.flen - 1)
    if type_class is TypeClass.JSON:
        return binary_json.map(bytes)
    return st.binary(max_size=12) if type_class is TypeClass.BYTES else _texts


@st.composite
def typed_rows(draw: st.DrawFn) -> tuple[DecodedValue, ...]:
    """One row of the table above; every column but the key may be NULL."""
    first, *others = COLUMNS
    return (draw(decoded_values_of(first[1])), *(draw(st.none() | decoded_values_of(kind)) for _, kind in others))


def read_value(column_type: ColumnType, value: DecodedValue, zone: tzinfo) -> Value:
    """What an event has for it where the protocol has numbers for ENUMs, SETs and BITs."""
    kind = column_type.kind
    match column_type.type_class:
        case _ if value is None:
            return None
        case TypeClass.FLOAT if kind.tp is Tp.FLOAT:
            return float(str(np.float32(value)))
        case TypeClass.TEXT:
            assert isinstance(value, bytes)
            return value.decode()
        case TypeClass.JSON:
            assert isinstance(value, bytes)
            return decode_text(value)[0]
        case TypeClass.DATE:
            return date_text(int(value))
        case TypeClass.DATETIME if kind.tp is Tp.TIMESTAMP:
            return timestamp_text(int(value), kind.fsp, zone)
        case TypeClass.DATETIME:
            return datetime_text(int(value), kind.fsp)
        case TypeClass.TIME:
            return duration_text(int(value), kind.fsp)
        case _:
            return value


def read_row(columns: Sequence[Column], row: Sequence[DecodedValue], zone: tzinfo) -> dict[str, Value]:
    """By name."""
    pairs = zip(columns, row, strict=True)
    return {column.name: read_value(column.column_type, value, zone) for column, value in pairs}
