"""Names of tables in a SQLite file."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.sink.errors import DestinationRefused
from drainer.sink.sqlite.layout import quote, rowid_name, table_name, tables_of

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
