"""Tables with columns of every type and changes of their rows, for hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from binlog.tidb.json_encode import parse_json
from binlog.tidb.time import parse_datetime
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Table
from drainer.row.column_type import DecodedValue
from tests.support.row_changes import make_changes, make_table

UTF8 = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
I64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300)
U64 = st.integers(0, (1 << 64) - 1) | st.integers(0, 300)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40).map(str.encode) | st.just(b"x" * 200)
BYTES = st.binary(max_size=40)
TIMES = st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1)).map(
    lambda at: parse_datetime(at.strftime("%Y-%m-%d %H:%M:%S"))
)
JSON_TEXTS = ["{}", "null", '{"a": [1, 2.5, "x"]}', '"täxt"', "18446744073709551615"]
JSONS = st.sampled_from(JSON_TEXTS).map(lambda text: bytes(parse_json(text)))

Draw = Callable[[Any], Any]
COLUMNS: list[tuple[str, FieldType, Any]] = [
    ("tiny", FieldType(Tp.TINY, 0, 4, 0), st.integers(-128, 127)),
    ("int", FieldType(Tp.LONG, 0, 11, 0), st.integers(-(1 << 31), (1 << 31) - 1)),
    ("big", FieldType(Tp.LONGLONG, 0, 20, 0), I64),
    ("ubig", FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0), U64),
    ("year", FieldType(Tp.YEAR, Flag.UNSIGNED, 4, 0), st.integers(1901, 2155) | st.just(0)),
    ("float", FieldType(Tp.FLOAT, 0, 12, -1), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    ("double", FieldType(Tp.DOUBLE, 0, 22, -1), st.floats(allow_nan=False, allow_infinity=False)),
    ("decimal", FieldType(Tp.NEWDECIMAL, 0, 10, 2), st.decimals(-99999, 99999, places=2).map(str)),
    ("char", FieldType(Tp.STRING, 0, 40, **UTF8), TEXT),
    ("varchar", FieldType(Tp.VARCHAR, 0, 400, **UTF8), TEXT),
    ("text", FieldType(Tp.BLOB, 0, 65535, **UTF8), TEXT),
    ("binary", FieldType(Tp.STRING, 0, 40, charset="binary"), BYTES),
    ("varbinary", FieldType(Tp.VARCHAR, 0, 40, charset="binary"), BYTES),
    ("longblob", FieldType(Tp.LONG_BLOB, 0, -1, charset="binary"), BYTES),
    ("date", FieldType(Tp.DATE, 0, 10, 0), st.just(parse_datetime("2024-02-29 00:00:00")) | st.just(0)),
    ("datetime", FieldType(Tp.DATETIME, 0, 26, 6), TIMES | st.just(0)),
    ("timestamp", FieldType(Tp.TIMESTAMP, 0, 19, 0), TIMES | st.just(0)),
    ("time", FieldType(Tp.DURATION, 0, 10, 3), st.integers(-3_020_399, 3_020_399).map(lambda ms: ms * 1_000_000)),
    ("enum", FieldType(Tp.ENUM, 0, -1, -1, elems=("a", "b", "ü"), **UTF8), st.integers(0, 3)),
    ("set", FieldType(Tp.SET, 0, -1, -1, elems=("a", "b", "c"), **UTF8), st.integers(0, 7)),
    ("bit", FieldType(Tp.BIT, Flag.UNSIGNED, 11, 0), st.integers(0, 2047)),
    ("json", FieldType(Tp.JSON, 0, -1, 0), JSONS),
]
KINDS = {name: kind for name, kind, _ in COLUMNS}
VALUES = {name: values for name, _, values in COLUMNS}


@st.composite
def tables(draw: Draw, *, table_id: int = 100) -> Table:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6, unique=True))
    columns = [("id", FieldType(Tp.LONGLONG, 0, 20, 0)), *((name, KINDS[name]) for name in names)]
    primary = ["id"] if draw(st.booleans()) else []
    return make_table(
        draw(st.sampled_from(["shop", "tëst`s"])), f"t{table_id}", columns, primary=primary, table_id=table_id
    )


def rows(table: Table, min_size: int = 1, max_size: int = 4) -> Any:
    cells = [I64 if column.name == "id" else st.none() | VALUES[column.name] for column in table.columns]
    return st.lists(st.tuples(*cells), min_size=min_size, max_size=max_size)


@st.composite
def changes(draw: Draw, *, table_id: int = 100) -> RowChanges:
    """Of one kind, in ascending transactions, several rows in some."""
    table = draw(tables(table_id=table_id))
    kind = draw(st.sampled_from(list(Kind)))
    images: list[tuple[DecodedValue, ...]] = draw(rows(table))
    others = draw(rows(table, len(images), len(images)))
    stamps = sorted(draw(st.lists(st.integers(2, 4), min_size=len(images), max_size=len(images))))
    return make_changes(
        table,
        kind,
        old=None if kind is Kind.INSERT else others,
        new=None if kind is Kind.DELETE else images,
        commit_ts=[400_000_000_000_000_000 + ts for ts in stamps],
    )
