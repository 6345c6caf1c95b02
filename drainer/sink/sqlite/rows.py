"""Rows into SQLite, and the SQLite table of a TableInfo that has them. Net rows are written by key, ordered changes one
by one. Runs inside its caller's transaction.

One file holds every database: table `orders` of `shop` is the SQLite table "shop.orders". A dot inside either name is
written as %2E, so that no two tables have one name. A table has the public columns that are not generated. Each type
has the affinity that leaves values unchanged (sqlite/format.py): DECIMAL is text, and BIGINT UNSIGNED has no affinity,
because values above 2^63-1 are text and must not become floats. All values compare as bytes. Upstream's collations are
coarser, so keys that do not conflict upstream do not conflict here.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, FieldType, Tp

from drainer.batch.work import (
    Folded,
    KeyChange,
    Kind,
    Match,
    Row,
    SegmentWork,
    TableShape,
    replaces,
    upsert,
)
from drainer.ddl.lexer import quoted
from drainer.ddl.table_diff import all_indexes
from drainer.row.layout import replicated
from drainer.sink.errors import DestinationRefused, MissingRows, RowMissing, RowsRefused, UniqueConflict

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


_UNIQUE: Final = re.compile(r"UNIQUE constraint failed: (.*)")
_MISSING: Final = re.compile(r"no such (table|column)|has no column named")


def write(connection: sqlite3.Connection, work: SegmentWork, missing: MissingRows | None = None) -> None:
    """All rows of a segment. Raises UniqueConflict, RowMissing, RowsRefused."""
    missing = missing or MissingRows()
    for change in work.ordered.changes:
        with _named(connection, change.shape, work.until_ts):
            if change.shape.upserts:
                _upsert(connection, change, missing)
            else:
                _one(connection, change)
    for folded in work.folded:
        with _named(connection, folded.shape, work.until_ts):
            _net(connection, folded, known_absent=work.commits > 1)


def _net(connection: sqlite3.Connection, folded: Folded, *, known_absent: bool) -> None:
    """Delete every key of the segment, then insert the rows that exist at its end. So a row that the segment does not
    change is never replaced (rule 12: REPLACE evicts only stale rows). Keys are compared byte for byte, even if the
    table was created with another collation (rule 10: equal keys). `known_absent`: in a table with further unique keys,
    keys that the segment creates are not deleted first. If such a key exists, its row may conflict with another row
    (rule 21: one outcome wherever a stream is cut)."""
    shape = folded.shape
    table = quote(table_name(shape.schema, shape.table))
    keys = [_tuple(key) for row in folded.rows for key in row.stale]
    rows = [_tuple(row.row) for row in folded.rows if row.row is not None]
    stays = known_absent and bool(shape.secondary_unique)
    kept = [row for row in folded.rows if row.row is not None and not (stays and row.first is Kind.INSERT)]
    keys += [tuple(row[at] for at in shape.key) for row in (_tuple(row.row) for row in kept)]
    match = " AND ".join(f"{quote(shape.columns[at])}=? COLLATE BINARY" for at in shape.key)
    connection.executemany(f"DELETE FROM {table} WHERE {match}", keys)
    connection.executemany(_insert(shape), rows)


def _insert(shape: TableShape, way: str = "") -> str:
    names = ", ".join(map(quote, shape.columns))
    marks = ", ".join("?" * len(shape.columns))
    return f"INSERT {way}INTO {quote(table_name(shape.schema, shape.table))} ({names}) VALUES ({marks})"


def _upsert(connection: sqlite3.Connection, change: KeyChange, missing: MissingRows) -> None:
    """Apply changes by rule 21: a row to delete may be missing, and a written row replaces every row that has one of
    its unique values."""
    shape = change.shape
    gone, put = upsert(change)
    table = quote(table_name(shape.schema, shape.table))
    if gone is not None and shape.row_key:
        match = " AND ".join(f"{quote(shape.columns[at])}=?" for at in shape.row_key)
        connection.execute(f"DELETE FROM {table} WHERE {match}", [gone[at] for at in shape.row_key])
    elif gone is not None:
        changed = connection.execute(f"DELETE FROM {table} WHERE {_one_of(shape)}", gone).rowcount
        missing.note(shape, 1 - changed)
    if put is not None:
        connection.execute(_insert(shape, "OR REPLACE " if replaces(shape) else ""), put)


def _one_of(shape: TableShape) -> str:
    """Return the condition that matches one row by all columns, NULL equal to NULL (rule 11: tables without keys)."""
    rowid = rowid_name(shape.columns)
    equal = (f"{quote(name)} IS ? COLLATE BINARY" for name in shape.columns)
    pairs = zip(equal, shape.match, strict=True)
    match = " AND ".join(text if how is not Match.ANY else f"({text} OR 1)" for text, how in pairs)
    return f"{rowid} = (SELECT {rowid} FROM {quote(table_name(shape.schema, shape.table))} WHERE {match} LIMIT 1)"


def _one(connection: sqlite3.Connection, change: KeyChange) -> None:
    """Apply one change of a table without a key."""
    shape = change.shape
    if change.kind is Kind.INSERT:
        connection.execute(_insert(shape), change.new or ())
        return
    table = quote(table_name(shape.schema, shape.table))
    one = _one_of(shape)
    if change.kind is Kind.DELETE:
        changed = connection.execute(f"DELETE FROM {table} WHERE {one}", change.old or ()).rowcount
    else:
        sets = ", ".join(f"{quote(name)}=?" for name in shape.columns)
        values = (*(change.new or ()), *(change.old or ()))
        changed = connection.execute(f"UPDATE {table} SET {sets} WHERE {one}", values).rowcount
    if changed != 1:
        raise RowMissing.of(
            shape,
            f"{change.kind.name} of commit_ts {change.commit_ts} matched {changed} rows instead of one: the file has "
            f"no row {change.old!r:.300}, so it has diverged from upstream before this",
        )


@contextlib.contextmanager
def _named(connection: sqlite3.Connection, shape: TableShape, until_ts: int) -> Iterator[None]:
    """Translate SQLite's errors, naming the table."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        found = _UNIQUE.search(str(error))
        if found is None:
            raise RowsRefused.of(shape, f"a row up to commit_ts {until_ts} is refused: {error}") from error
        key = _key_name(connection, shape, found.group(1))
        raise UniqueConflict.of(
            shape,
            f"unique key {key!r} refuses a row up to commit_ts {until_ts}. The file has a row that upstream has not"
            + ("" if key == "PRIMARY" else ", or upstream has dropped this key or is dropping it"),
            key=key,
        ) from error
    except (sqlite3.OperationalError, sqlite3.ProgrammingError, OverflowError) as error:
        if isinstance(error, sqlite3.OperationalError) and not _MISSING.search(str(error)):
            raise  # the file itself: busy, disk full
        raise RowsRefused.of(shape, f"rows up to commit_ts {until_ts} are refused: {error}") from error


def _key_name(connection: sqlite3.Connection, shape: TableShape, columns: str) -> str:
    """Return upstream's name of the index on these columns. SQLite's error names the columns; it names the index only
    if that is on expressions."""
    prefix = table_name(shape.schema, shape.table) + "."
    if columns.startswith("index '"):
        return columns[len("index '") : -1].removeprefix(prefix)
    wanted = [column.removeprefix(prefix) for column in columns.split(", ")]
    for row in connection.execute(f"PRAGMA index_list({quote(prefix[:-1])})").fetchall():
        parts = connection.execute(f"PRAGMA index_info({quote(row[1])})").fetchall()
        if [part[2] for part in parts] == wanted and row[3] != "pk":
            return str(row[1]).removeprefix(prefix)
    return "PRIMARY"


def _tuple(value: Row | None) -> Sequence[object]:
    assert isinstance(value, tuple), "as SQLiteValues makes them"
    return value
