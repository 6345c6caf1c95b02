"""Names of tables in a SQLite file."""

from __future__ import annotations

import sqlite3

import pytest
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.schema.steps import Located, TableChange
from drainer.sink.errors import DestinationRefused
from drainer.sink.sqlite.ddl import exchange, take_rows
from drainer.sink.sqlite.format import Value, converter
from drainer.sink.sqlite.rows import create_table, quote, rowid_name, table_name, tables_of
from tests.unit.drainer.row.test_partition import DROPPED, EXCHANGED, NORMAL, OLD, TRUNCATED

NAMES = st.text(st.sampled_from(".%25Ea"), max_size=5)


@given(NAMES, NAMES, NAMES, NAMES)
def test_different_tables_get_different_sqlite_names(schema: str, table: str, schema2: str, table2: str) -> None:
    same = (schema, table) == (schema2, table2)
    assert (table_name(schema, table) == table_name(schema2, table2)) == same
    assert table_name(schema, table).startswith(table_name(schema2, "")) == (schema == schema2)


@pytest.mark.parametrize("name", ["orders", "100%", "%2F", "`a`", "名"])
def test_sqlite_name_of_names_without_dot_is_schema_dot_table(name: str) -> None:
    assert table_name(name, name) == f"{name}.{name}"


def test_quoted_missing_column_is_error_and_not_string() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE {quote('a`b')} ({quote('c')})")
    with pytest.raises(sqlite3.OperationalError, match="no such column: id"):
        connection.execute(f"DELETE FROM {quote('a`b')} WHERE {quote('id')}='id'")
    assert tables_of(connection, "a`b") == []
    connection.close()


def test_table_with_columns_of_all_rowid_names_is_refused() -> None:
    assert rowid_name(["id", "_ROWID_", "rowid"]) == "oid"
    with pytest.raises(DestinationRefused, match="_rowid_, rowid, oid"):
        rowid_name(["Oid", "RowId", "_rowid_"])


# Whole partitions in SQLite, whose tables have none.


def filled() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for name, info, ids in (("d.t", OLD, (5, 15, 25)), ("d.n", NORMAL, (6, 7))):
        connection.execute(create_table(name, info))
        connection.executemany(f'INSERT INTO "{name}" VALUES (?, ?)', [(i, i * 10) for i in ids])
    return connection


def ids(connection: sqlite3.Connection, name: str) -> list[tuple[int, int]]:
    return connection.execute(f'SELECT id, v FROM "{name}" ORDER BY id').fetchall()


def test_truncated_or_dropped_partition_deletes_its_rows() -> None:
    for after in (TRUNCATED, DROPPED):
        connection = filled()
        take_rows(connection, (TableChange(Located(100, "d", OLD), Located(100, "d", after)),))
        assert ids(connection, "d.t") == [(15, 150), (25, 250)]


def test_exchanged_partition_swaps_its_rows_with_table() -> None:
    connection = filled()
    parted = TableChange(Located(100, "d", OLD), Located(100, "d", EXCHANGED))
    exchange(connection, (parted, TableChange(Located(150, "d", NORMAL), Located(201, "d", NORMAL))))
    assert ids(connection, "d.t") == [(6, 60), (7, 70), (15, 150), (25, 250)]
    assert ids(connection, "d.n") == [(5, 50)]


# MODIFY COLUMN on stored SQLite values.


INT = FieldType(Tp.LONG)
UNSIGNED = FieldType(Tp.LONGLONG, flag=Flag.UNSIGNED)
TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
BYTES = FieldType(Tp.BLOB)
DOUBLE = FieldType(Tp.DOUBLE)
DATE = FieldType(Tp.DATE)
TIME = FieldType(Tp.DURATION, decimal=0)
JSON = FieldType(Tp.JSON)
ENUM = FieldType(Tp.ENUM, elems=("a", "b"))


def decimal(scale: int) -> FieldType:
    return FieldType(Tp.NEWDECIMAL, flen=65, decimal=scale)


def stamp(fsp: int) -> FieldType:
    return FieldType(Tp.DATETIME, decimal=fsp)


@pytest.mark.parametrize(
    ("old", "new", "value", "wanted"),
    [
        (INT, TEXT, 5, "5"),
        (TEXT, INT, " 5.5 ", 6),
        (TEXT, INT, "-5.5", -6),
        (DOUBLE, TEXT, 2.0, "2"),
        (DOUBLE, TEXT, 0.1, "0.1"),
        (decimal(2), decimal(1), "1.25", "1.3"),
        (decimal(0), decimal(3), "7", "7.000"),
        (decimal(0), decimal(2), "9" * 40, "9" * 40 + ".00"),
        (DOUBLE, FieldType(Tp.BIT, flen=4), 2.5, 3),
        (INT, decimal(2), 7, "7.00"),
        (decimal(2), UNSIGNED, "18446744073709551615.00", "18446744073709551615"),
        (INT, DOUBLE, 3, 3.0),
        (TEXT, BYTES, "é", "é".encode()),
        (BYTES, TEXT, b"ab", "ab"),
        (DATE, stamp(3), "2020-01-02", "2020-01-02 00:00:00.000"),
        (stamp(3), stamp(0), "2020-12-31 23:59:59.500", "2021-01-01 00:00:00"),
        (stamp(0), stamp(6), "2020-01-01 01:02:03", "2020-01-01 01:02:03.000000"),
        (stamp(0), DATE, "2020-01-01 01:02:03", "2020-01-01"),
        (stamp(3), DATE, "2020-12-31 23:59:59.500", "2021-01-01"),
        (TEXT, FieldType(Tp.ENUM, elems=("a", "b"), collate="utf8mb4_general_ci"), "B", "b"),
        (ENUM, JSON, "a", '"a"'),
        (TEXT, JSON, '{"b":1,"a":2.0}', '{"a": 2, "b": 1}'),
        (INT, TEXT, None, None),
    ],
)
def test_modify_column_converts_values_as_upstream_did(
    old: FieldType, new: FieldType, value: Value, wanted: Value
) -> None:
    convert = converter(old, new)
    assert convert is not None
    assert convert(value) == wanted


@pytest.mark.parametrize(("old", "new"), [(INT, FieldType(Tp.LONGLONG)), (ENUM, TEXT), (DATE, TEXT),
                                          (decimal(2), TEXT), (decimal(2),) * 2, (JSON, TEXT), (DATE, DATE)],
                         )  # fmt: skip
def test_modify_column_between_equal_storage_needs_no_conversion(old: FieldType, new: FieldType) -> None:
    assert converter(old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [(INT, DATE, 20200102), (JSON, INT, "[]"), (TIME, stamp(0), "10:00:00"), (TEXT, INT, "no number")],
)
def test_modify_column_of_value_without_equivalent_is_refused(old: FieldType, new: FieldType, value: Value) -> None:
    convert = converter(old, new)
    assert convert is not None
    with pytest.raises(ValueError, match=r"does not fit|is not a date"):
        convert(value)
