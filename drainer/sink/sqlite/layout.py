"""The SQLite table of a TableInfo: names, types, keys.

One file holds every database: table `orders` of `shop` is the SQLite table "shop.orders". A dot inside either name is
written as %2E, so that no two tables have one name. A table has the public columns that are not generated. Each type
has the affinity that leaves values unchanged (sqlite/format.py): DECIMAL is text, and BIGINT UNSIGNED has no affinity,
because values above 2^63-1 are text and must not become floats. All values compare as bytes. Upstream's collations are
coarser, so keys that do not conflict upstream do not conflict here.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexInfo
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, FieldType, Tp

from drainer.ddl.lexer import quoted
from drainer.ddl.table_diff import all_indexes
from drainer.row.layout import replicated
from drainer.sink.errors import DestinationRefused

_ROWID_NAMES: Final = ("_rowid_", "rowid", "oid")
_ESCAPED: Final = re.compile(r"%(?=2[5E])|\.")


quote: Final = quoted  # in double quotes SQLite would take the name of a column that does not exist for a string


def table_name(schema: str, table: str) -> str:
    """The SQLite table of an upstream table, not quoted. The first dot separates the two names, the only one."""
    return f"{_escaped(schema)}.{_escaped(table)}"


def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda found: "%2E" if found[0] == "." else "%25", name)


def tables_of(connection: sqlite3.Connection, schema: str) -> list[str]:
    """Return the SQLite names of the tables of an upstream database."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
    prefix = table_name(schema, "").lower()
    return [str(name) for (name,) in rows if str(name).lower().startswith(prefix)]


def rowid_name(columns: Iterable[str]) -> str:
    """Return a name of SQLite's row number that none of these columns has. Raises DestinationRefused if all of them are
    names of columns: one of several equal rows cannot be named then."""
    taken = {name.lower() for name in columns}
    free = [name for name in _ROWID_NAMES if name not in taken]
    if not free:
        raise DestinationRefused(
            f"a table with the columns {', '.join(_ROWID_NAMES)} cannot be in SQLite: they hide its row number; rename "
            "one of them upstream or exclude the table"
        )
    return free[0]


def affinity(kind: FieldType) -> str:
    """The declared type; '' keeps a value exactly as it was bound."""
    if kind.tp in INTEGERS:
        return "" if kind.is_unsigned and kind.tp is Tp.LONGLONG else "INTEGER"
    if kind.tp is Tp.BIT:
        return "" if kind.flen >= 64 else "INTEGER"
    if kind.tp in FLOATS:
        return "REAL"
    return "BLOB" if kind.tp in STRINGS and kind.charset == "binary" else "TEXT"


def column_sql(column: ColumnInfo) -> str:
    parts = [quote(column.name), affinity(column.type), "NOT NULL" if column.is_not_null else ""]
    return " ".join(part for part in parts if part)


def primary_key(table: TableInfo) -> tuple[str, ...]:
    """Columns of the clustered primary key; empty where rows are not stored by it."""
    index = table.primary_index()
    if index is None or not (table.pk_is_handle or table.is_common_handle) or not _indexable(table, index):
        return ()
    if any(part.length >= 0 for part in index.columns):  # a prefix: an index on substr() stands for it
        return ()
    return tuple(table.columns[part.offset].name for part in index.columns)


def create_table(name: str, table: TableInfo) -> str:
    """CREATE TABLE without its indexes."""
    parts = [column_sql(column) for column in replicated(table)]
    key = primary_key(table)
    if key:
        parts.append("PRIMARY KEY (" + ", ".join(map(quote, key)) + ")")
    return f"CREATE TABLE {quote(name)} (" + ", ".join(parts) + ")"


def indexes(name: str, table: TableInfo) -> dict[str, str]:
    """Index name → CREATE INDEX, for every public index that SQLite can have."""
    found: dict[str, str] = {}
    for index in all_indexes(table):
        if not _indexable(table, index) or (index.primary and primary_key(table)):
            continue
        index_name = f"{name}.{index.name}"
        unique = "UNIQUE " if index.unique or index.primary else ""
        columns = ", ".join(_part(table.columns[part.offset], part.length) for part in index.columns)
        found[index_name] = f"CREATE {unique}INDEX {quote(index_name)} ON {quote(name)} ({columns})"
    return found


def _indexable(table: TableInfo, index: IndexInfo) -> bool:
    """Whether SQLite can have this index: not on a generated column, because its table has none."""
    return not any(table.columns[part.offset].is_generated for part in index.columns)


def _part(column: ColumnInfo, length: int) -> str:
    name = quote(column.name)
    whole = length < 0 or length == column.type.flen
    return name if whole else f"substr({name}, 1, {length})"
