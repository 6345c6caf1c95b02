"""Columns of every type with what their values are: as decoded values, as our decoder gives them, as fastavro reads
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any

import numpy as np
from binlog.tidb.json import decode_text
from binlog.tidb.json_encode import encode_json
from binlog.tidb.time import Civil, date_text, datetime_text, duration_text, pack, timestamp_text
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.schema_ids import KnownSchemas, merged
from drainer.protocol.table import Table
from drainer.row.column_type import DecodedValue

TOPIC = "a.topic"
TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
NAMES = ("a", "b,c", "d'e", "größe")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Case:
    """`event`: from a decoded value to what our decoder gives; `plain`: to what fastavro reads."""

    kind: FieldType
    decoded_values: st.SearchStrategy[DecodedValue]
    event: Callable[[Any], Any] = _same
    plain: Callable[[Any], Any] = _same
    options: tuple[tuple[str, str], ...] = ()

    def not_null(self) -> Case:
        return replace(self, kind=replace(self.kind, flag=self.kind.flag | Flag.NOT_NULL))


def _unsigned(kind: Tp) -> FieldType:
    return FieldType(kind, Flag.UNSIGNED)


def _ints(bits: int, signed: bool = True) -> st.SearchStrategy[DecodedValue]:
    if signed:
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    return st.integers(0, (1 << bits) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[DecodedValue]:
    most = 10**precision - 1
    edges = [sign * (1 << 8 * n - 1) + more for n in range(1, 27) for sign in (1, -1) for more in (-1, 0, 1)]
    edges = [n for n in edges if abs(n) <= most]
    return st.one_of(st.integers(-most, most), st.sampled_from(edges)).map(lambda n: _fixed(n, scale))


def _fixed(number: int, scale: int) -> str:
    return format(Decimal(number).scaleb(-scale, Context(prec=80)), "f")


def _trimmed(number: int) -> bytes:
    return number.to_bytes(max(1, -(-number.bit_length() // 8)), "big")


def _single(value: float) -> float:
    return float(np.float32(value))


def _set_text(number: int) -> str:
    return ",".join(name for n, name in enumerate(NAMES) if number >> n & 1)


def _exact(text: str) -> Decimal:
    return Decimal(text)


def _wrapped(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


_FIELDS = (st.integers(0, 9999), st.integers(0, 12), st.integers(0, 28), st.integers(0, 23))
_MINUTES = (st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999))
MOMENTS = st.one_of(st.just(0), st.tuples(*_FIELDS, *_MINUTES).map(lambda parts: pack(Civil(*parts))))
DAYS = st.one_of(st.just(0), st.tuples(*_FIELDS[:3]).map(lambda day: pack(Civil(*day))))
_INSTANT = (st.integers(1971, 2037), st.integers(1, 12), st.integers(1, 28), _FIELDS[3], *_MINUTES)
INSTANTS = st.tuples(*_INSTANT).map(lambda parts: pack(Civil(*parts)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=70).map(str.encode)
_TIMES = st.integers(-3020399 * 10**6, 3020399 * 10**6).map(lambda micros: micros * 1000)


def _text_of(show: Callable[..., str], *args: Any) -> Callable[[Any], str]:
    return lambda value: show(value, *args)


_DATETIME = _text_of(datetime_text, 3)
_TIME = _text_of(duration_text, 6)
_STAMP = _text_of(timestamp_text, 6)


def _enum_text(number: int) -> str:
    return NAMES[number - 1] if number else ""


def _json_text(value: bytes) -> str:
    return decode_text(value)[0]


CASES: dict[str, Case] = {
    "tinyint": Case(FieldType(Tp.TINY), _ints(8)),
    "smallint": Case(FieldType(Tp.SHORT), _ints(16)),
    "mediumint unsigned": Case(_unsigned(Tp.INT24), _ints(24, False)),
    "int": Case(FieldType(Tp.LONG), _ints(32)),
    "int unsigned": Case(_unsigned(Tp.LONG), _ints(32, False)),
    "bigint": Case(FieldType(Tp.LONGLONG), _ints(64)),
    "bigint unsigned": Case(_unsigned(Tp.LONGLONG), _ints(64, False), plain=_wrapped),
    "bigint unsigned string": Case(
        _unsigned(Tp.LONGLONG), _ints(64, False), plain=str, options=(("avro_bigint_unsigned_handling_mode", "string"),)
    ),
    "year": Case(_unsigned(Tp.YEAR), st.integers(1901, 2155) | st.just(0)),
    "float": Case(FieldType(Tp.FLOAT), SINGLES, _single, _single),
    "double": Case(FieldType(Tp.DOUBLE), DOUBLES),
    "decimal(10,4)": Case(FieldType(Tp.NEWDECIMAL, flen=10, decimal=4), _decimals(10, 4), plain=_exact),
    "decimal(18,0)": Case(FieldType(Tp.NEWDECIMAL, flen=18, decimal=0), _decimals(18, 0), plain=_exact),
    "decimal(19,18)": Case(FieldType(Tp.NEWDECIMAL, flen=19, decimal=18), _decimals(19, 18), plain=_exact),
    "decimal(38,0)": Case(FieldType(Tp.NEWDECIMAL, flen=38, decimal=0), _decimals(38, 0), plain=_exact),
    "decimal(65,30)": Case(FieldType(Tp.NEWDECIMAL, flen=65, decimal=30), _decimals(65, 30), plain=_exact),
    "decimal string": Case(
        FieldType(Tp.NEWDECIMAL, flen=20, decimal=5),
        _decimals(20, 5),
        options=(("avro_decimal_handling_mode", "string"),),
    ),
    "varchar": Case(TEXT, STRINGS, bytes.decode, bytes.decode),
    "blob": Case(FieldType(Tp.BLOB), st.binary(max_size=150)),
    "date": Case(FieldType(Tp.DATE), DAYS, date_text, date_text),
    "datetime(3)": Case(FieldType(Tp.DATETIME, decimal=3), MOMENTS, _DATETIME, _DATETIME),
    "timestamp(6)": Case(FieldType(Tp.TIMESTAMP, decimal=6), INSTANTS | st.just(0), _STAMP, _STAMP),
    "time(6)": Case(FieldType(Tp.DURATION, decimal=6), _TIMES, _TIME, _TIME),
    "enum": Case(FieldType(Tp.ENUM, elems=NAMES), st.integers(0, 4), _enum_text, _enum_text),
    "set": Case(FieldType(Tp.SET, elems=NAMES), st.integers(0, 15), _set_text, _set_text),
    "bit(1)": Case(FieldType(Tp.BIT, flen=1), st.integers(0, 1), plain=_trimmed),
    "bit(64)": Case(FieldType(Tp.BIT, flen=64), _ints(64, False), plain=_trimmed),
    "json": Case(FieldType(Tp.JSON), JSON.map(lambda value: bytes(encode_json(value))), _json_text, _json_text),
}


def ready(table: Table, options: ProtocolOptions, **more: Any) -> tuple[AvroEncoder, KnownSchemas]:
    """An encoder with ids for the table's schemas, and the schemas by those ids."""
    options = replace(options, **more)
    encoder = AvroEncoder(options).in_topic(TOPIC)
    numbered = list(enumerate(encoder.required_schemas(TOPIC, table), 1))
    ids = merged({}, [(required, number) for number, required in numbered])
    return encoder.with_ids(ids), KnownSchemas({number: required.schema for number, required in numbered})


def rows_of(draw: st.DrawFn, cases: Sequence[Case], count: int) -> list[list[DecodedValue]]:
    """NULL now and then, where it may be."""
    columns = [
        case.decoded_values if case.kind.is_not_null else st.one_of(case.decoded_values, st.none()) for case in cases
    ]
    return [[draw(column) for column in columns] for _ in range(count)]
