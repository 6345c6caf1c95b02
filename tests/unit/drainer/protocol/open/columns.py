"""Columns of every type: strategies for their decoded values, and what a reader of Open Protocol finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC

import numpy as np
from binlog.tidb.json_encode import encode_json
from binlog.tidb.time import Civil, pack
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.protocol.column_text import text_of
from drainer.protocol.event import Value
from drainer.row.column_type import ColumnType, DecodedValue

Strategy = st.SearchStrategy[DecodedValue]
UTF8 = ("utf8mb4", "utf8mb4_bin")
ELEMS = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Sample:
    """One column type: `decoded_values` of its values, `seen`: the value that a reader finds for one."""

    name: str
    kind: FieldType
    decoded_values: Strategy
    seen: Callable[[DecodedValue], Value]


def _same(value: DecodedValue) -> Value:
    return value


def _decoded(value: DecodedValue) -> Value:
    assert isinstance(value, bytes)
    return value.decode()


def _single(value: DecodedValue) -> Value:
    return float(str(np.float32(value)))


def _shown(kind: FieldType) -> Callable[[DecodedValue], Value]:
    return text_of(ColumnType.of(kind), UTC)


def _int(name: str, tp: Tp, low: int, high: int, flag: int = 0) -> Sample:
    return Sample(name, FieldType(tp, flag), st.integers(low, high), _same)


def _civil(date_only: bool = False) -> Strategy:
    whole = st.just(0) if date_only else st.integers(0, 59)
    hour = st.just(0) if date_only else st.integers(0, 23)
    micro = st.just(0) if date_only else st.integers(0, 999_999)
    made = st.builds(Civil, st.integers(0, 9999), st.integers(1, 12), st.integers(1, 28), hour, whole, whole, micro)
    return made.map(pack) | st.just(0)


def _time(name: str, tp: Tp, decoded_values: Strategy, decimal: int = 0) -> Sample:
    kind = FieldType(tp, decimal=decimal)
    return Sample(name, kind, decoded_values, _shown(kind))


def _bytes(name: str, tp: Tp, *, binary: bool) -> Sample:
    charset = ("binary", "binary") if binary else UTF8
    decoded_values: Strategy = st.binary(max_size=40) if binary else st.text(max_size=40).map(_encoded)
    return Sample(name, FieldType(tp, 0, 40, 0, *charset), decoded_values, _same if binary else _decoded)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


_JSON = FieldType(Tp.JSON)
_documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=6,
)

SAMPLES = [
    _int("tiny", Tp.TINY, -128, 127),
    _int("short", Tp.SHORT, 0, 65535, Flag.UNSIGNED),
    _int("medium", Tp.INT24, -(1 << 23), (1 << 23) - 1),
    _int("int", Tp.LONG, -(1 << 31), (1 << 31) - 1),
    _int("big", Tp.LONGLONG, -(1 << 63), (1 << 63) - 1),
    _int("ubig", Tp.LONGLONG, 0, (1 << 64) - 1, Flag.UNSIGNED),
    _int("year", Tp.YEAR, 0, 2155),
    Sample("float", FieldType(Tp.FLOAT), st.floats(width=32, allow_nan=False, allow_infinity=False), _single),
    Sample("double", FieldType(Tp.DOUBLE), st.floats(allow_nan=False, allow_infinity=False), _same),
    Sample("decimal", FieldType(Tp.NEWDECIMAL, 0, 10, 2), st.decimals(-9999, 9999, places=2).map(str), _same),
    _bytes("varchar", Tp.VARCHAR, binary=False),
    _bytes("varstring", Tp.VAR_STRING, binary=False),
    _bytes("char <&>", Tp.STRING, binary=False),
    _bytes("varbinary", Tp.VARCHAR, binary=True),
    _bytes("binary", Tp.STRING, binary=True),
    _bytes("tinytext", Tp.TINY_BLOB, binary=False),
    _bytes("text", Tp.BLOB, binary=False),
    _bytes("longtext", Tp.LONG_BLOB, binary=False),
    _bytes("mediumblob", Tp.MEDIUM_BLOB, binary=True),
    _bytes("blob", Tp.BLOB, binary=True),
    _time("date", Tp.DATE, _civil(date_only=True)),
    _time("Datetime", Tp.DATETIME, _civil()),
    _time("datetime6", Tp.DATETIME, _civil(), 6),
    _time("timestamp3", Tp.TIMESTAMP, _civil(), 3),
    _time("time2", Tp.DURATION, st.integers(-3020399, 3020399).map(lambda s: s * 1_000_000_000 + s % 100 * 10**7), 2),
    Sample("enum", FieldType(Tp.ENUM, 0, 1, 0, *UTF8, ELEMS), st.integers(0, 3), _same),
    Sample("set", FieldType(Tp.SET, 0, 1, 0, *UTF8, ELEMS), st.integers(0, 7), _same),
    Sample("bit", FieldType(Tp.BIT, 0, 64), st.integers(0, (1 << 64) - 1), _same),
    Sample("json", _JSON, _documents.map(encode_json).map(bytes), _shown(_JSON)),
]
