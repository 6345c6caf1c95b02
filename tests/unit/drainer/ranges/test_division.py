"""The division of a table, with SQLite in TiDB's place: the very texts of the queries are run."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import pytest
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.ranges.upstream import BYTES_MAX, ROWID, ROWS_MAX, Range, Row, RowKey, divide, rows_of_range
from drainer.row.column_type import ColumnType
from tests.support.type_case import field_type
from tests.support.typed_columns import text_type

TEXT = FieldType(Tp.VARCHAR, Flag.NOT_NULL, 20, charset="utf8mb4", collate="utf8mb4_general_ci")
_names = st.text("aAbB' \\é", max_size=3)
_numbers = st.integers(-20, 20)


def key_of(*kinds: FieldType) -> RowKey:
    return RowKey(tuple("abc"[: len(kinds)]), tuple(map(ColumnType.of, kinds)))


class Upstream:
    """A table in SQLite. NOCASE stands for a collation that orders otherwise than bytes do."""

    def __init__(self, columns: str, rows: Sequence[Sequence[object]]) -> None:
        self._file = sqlite3.connect(":memory:")
        self._file.execute(f"CREATE TABLE t ({columns})")
        if rows:
            self._file.executemany(f"INSERT OR IGNORE INTO t VALUES ({','.join('?' * len(rows[0]))})", rows)
        self.asked = 0

    def ask(self, query: str) -> Sequence[Row]:
        self.asked += 1
        found = self._file.execute(query.replace("AS BINARY", "AS BLOB")).fetchall()
        return [[one if isinstance(one, bytes) else str(one).encode() for one in row] for row in found]

    def rows(self, where: str = "") -> list[tuple[object, ...]]:
        return self._file.execute(f"SELECT rowid, * FROM t{where}").fetchall()


def check(upstream: Upstream, key: RowKey, rows: int) -> list[Range]:
    """Each row is in exactly one range, and none but the last range has another number of rows."""
    ranges = list(divide("t", key, upstream.ask, rows))
    parts = [upstream.rows(one.where(key)) for one in ranges]
    assert sorted(row for part in parts for row in part) == sorted(upstream.rows())
    assert all(len(part) == rows for part in parts[:-1])
    assert len(parts[-1]) <= rows
    return ranges


@given(st.lists(st.tuples(_numbers)), st.integers(1, 9))
def test_each_row_of_an_integer_key_is_in_exactly_one_range(keys: list[tuple[int]], rows: int) -> None:
    check(Upstream("a INT PRIMARY KEY", keys), key_of(field_type("bigint not null")), rows)


@given(st.lists(st.tuples(_names, _numbers, st.binary(max_size=2))), st.integers(1, 9))
def test_each_row_of_a_clustered_key_is_in_exactly_one_range(keys: list[tuple[str, int, bytes]], rows: int) -> None:
    upstream = Upstream("a TEXT COLLATE NOCASE, b INT, c BLOB, PRIMARY KEY (a, b, c)", keys)
    check(upstream, key_of(TEXT, field_type("int not null"), field_type("varbinary(9) not null")), rows)


@given(st.lists(st.tuples(_numbers)), st.integers(1, 9))
def test_each_row_of_a_table_without_a_key_is_in_exactly_one_range(values: list[tuple[int]], rows: int) -> None:
    rowids = [(number * 3, *value) for number, value in enumerate(values)]
    upstream = Upstream(f"{ROWID} INTEGER PRIMARY KEY, a INT", rowids)
    check(upstream, RowKey.of(TableInfo(1, "t")), rows)


@given(st.lists(st.sampled_from(["2020-01-01", "2020-02-31", "0000-00-00", "2021-12-31"]), unique=True))
def test_value_that_is_no_literal_is_no_border(days: list[str]) -> None:
    key = key_of(field_type("date not null"))
    upstream = Upstream("a TEXT PRIMARY KEY", [(day,) for day in days])
    ranges = list(divide("t", key, upstream.ask, 1))
    assert sorted(row for one in ranges for row in upstream.rows(one.where(key))) == sorted(upstream.rows())
    borders = {border for one in ranges for border in (one.lower, one.upper) if border is not None}
    assert borders <= {("'2020-01-01'",), ("'2021-12-31'",)}


def test_empty_table_is_one_range_without_borders() -> None:
    assert list(divide("t", RowKey.of(TableInfo(1, "t")), lambda _: [], 5)) == [Range()]
    assert Range().where(key_of(TEXT)) == ""


def test_first_range_is_known_after_one_query() -> None:
    upstream = Upstream("a INT PRIMARY KEY", [(n,) for n in range(10)])
    next(divide("t", key_of(field_type("int not null")), upstream.ask, 3))
    assert upstream.asked == 1


@pytest.mark.parametrize(
    ("kind", "text", "border"),
    [
        (field_type("bigint unsigned"), b"18446744073709551615", "18446744073709551615"),
        (field_type("decimal(9,2)"), b"-1.50", "-1.50"),
        (field_type("double"), b"1e300", "1e300"),
        (field_type("enum(a;b)"), b"2", "2"),
        (field_type("varbinary(9)"), b"\x00'", "x'0027'"),
        (text_type(Tp.VARCHAR), "ü'\\".encode(), "'ü''\\'"),
        (field_type("datetime(3)"), b"2020-01-02 03:04:05.006", "'2020-01-02 03:04:05.006'"),
        (field_type("time"), b"-10:00:00", "'-10:00:00'"),
        (text_type(Tp.VARCHAR), b"\xff", None),
        (field_type("date"), b"2021-02-29", None),
        (field_type("date"), b"0000-00-00", None),
        (field_type("datetime"), b"' OR 1", None),
        (field_type("int"), b"1 OR 1", None),
        (field_type("json"), b"1", None),
    ],
)
def test_border_of_each_type_is_a_literal_or_none(kind: FieldType, text: bytes, border: str | None) -> None:
    assert key_of(kind).border([text]) == (None if border is None else (border,))


def test_null_is_no_border() -> None:
    assert key_of(TEXT).border([None]) is None


def table_of(*indexes: IndexInfo) -> TableInfo:
    columns = [ColumnInfo(1, "a", 0, replace(field_type("int"), flag=Flag.PRI_KEY | Flag.NOT_NULL))]
    return TableInfo(1, "t", (*columns, ColumnInfo(2, "b", 1, TEXT)), indexes)


def test_row_key_is_the_clustered_key_or_the_hidden_rowid() -> None:
    primary = IndexInfo(1, "PRIMARY", (IndexColumn("b", 1, 5), IndexColumn("a", 0)), unique=True, primary=True)
    assert RowKey.of(replace(table_of(), pk_is_handle=True)).columns == ("a",)
    assert RowKey.of(replace(table_of(primary), is_common_handle=True)).columns == ("b", "a")
    assert RowKey.of(table_of(primary)).columns == (ROWID,)
    assert RowKey.of(table_of()).columns == (ROWID,)


@given(st.lists(st.integers(1, 1 << 30), max_size=20))
def test_range_has_as_many_rows_as_fit_its_bytes(sizes: list[int]) -> None:
    rows = rows_of_range(sizes)
    assert 1 <= rows <= ROWS_MAX
    if sizes and rows > 1:
        assert rows * math.ceil(sum(sizes) / len(sizes)) <= BYTES_MAX
