"""Write rows into a SQLite file, to look at a topic's contents. Table `orders` of `shop` is "shop.orders", as the
drainer names it.

A table has the columns that its rows had, without types. Only DDLs about names and complete tables are applied: DROP,
TRUNCATE and RENAME of tables, DROP DATABASE, DROP COLUMN and CHANGE. Values that only a DDL sets, such as the default
of a new column in existing rows, are not sent as rows and are missing. A DDL that removes the rows of a partition stops
the consumer with an error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from binlog.tidb.job import ActionType

from drainer.ddl.column_pairs import changed_names
from drainer.ddl.lexer import tokens
from drainer.ddl.rename_parser import RenameUnreadable, rename_pairs
from drainer.kafka_consumer.core import ConsumeError, Part, Resume
from drainer.kafka_consumer.destination import added, removed, resume_of, resume_text
from drainer.protocol.event import DdlEvent, RowEvent
from drainer.row.scalar import small_int
from drainer.sink.errors import DestinationRefused
from drainer.sink.sqlite.file import refuse_old_names
from drainer.sink.sqlite.layout import quote, rowid_name, table_name, tables_of

STATE: Final = "kafka_consumer_state"
_REMOVES_PARTITIONS: Final = frozenset(
    {
        ActionType.DROP_TABLE_PARTITION,
        ActionType.TRUNCATE_TABLE_PARTITION,
        ActionType.EXCHANGE_TABLE_PARTITION,
    }
)
_NO_COLUMN: Final = frozenset({"INDEX", "KEY", "PRIMARY", "FOREIGN", "PARTITION", "CONSTRAINT", "CHECK"})


class SqliteDestination:
    """See destination.Destination. Closed until `open`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._columns: dict[str, set[str]] = {}
        self._stored = ""

    def open(self) -> Resume:
        try:
            connection = self._connection = sqlite3.connect(self._path, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            refuse_old_names(connection, self._path)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {STATE} (one INTEGER PRIMARY KEY, resume TEXT NOT NULL)")
            connection.execute(f"INSERT OR IGNORE INTO {STATE} VALUES (1, ?)", (resume_text(Resume()),))
            ((self._stored,),) = connection.execute(f"SELECT resume FROM {STATE}")
        except sqlite3.Error as error:
            raise ConsumeError(f"{self._path}: {error}") from None
        except DestinationRefused as error:
            raise ConsumeError(str(error)) from None
        return resume_of(self._stored)

    def apply(self, part: Part) -> None:
        connection = self._opened()
        text = resume_text(part.resume)
        try:
            connection.execute("BEGIN IMMEDIATE")
            for event in part.rows:
                self._row(connection, event)
            if part.ddl is not None:
                self._ddl(connection, part.ddl)
            moved = connection.execute(f"UPDATE {STATE} SET resume=? WHERE resume=?", (text, self._stored)).rowcount
            if moved != 1:
                raise ConsumeError(f"{self._path}: another consumer writes here, too")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise ConsumeError(f"{self._path}: {error}") from None
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                self._columns.clear()
        self._stored = text

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "open() comes first"
        return self._connection

    def _row(self, connection: sqlite3.Connection, event: RowEvent) -> None:
        name = table_name(event.schema, event.table)
        gone, is_key = removed(event)
        put = added(event)
        self._extend(connection, name, {**gone, **put}, gone if is_key else {})
        if gone:
            where = " AND ".join(f"{quote(column)} IS ?" for column in gone)
            if not is_key:
                rowid = rowid_name(self._columns[name])
                where = f"{rowid}=(SELECT {rowid} FROM {quote(name)} WHERE {where} LIMIT 1)"
            connection.execute(f"DELETE FROM {quote(name)} WHERE {where}", _values(gone))
        if put:
            columns, marks = ",".join(map(quote, put)), ",".join("?" * len(put))
            connection.execute(f"INSERT INTO {quote(name)} ({columns}) VALUES ({marks})", _values(put))

    def _extend(
        self, connection: sqlite3.Connection, name: str, row: Mapping[str, object], key: Mapping[str, object]
    ) -> None:
        """Create the table, and add the columns that it lacks."""
        known = self._columns.get(name)
        if known is None:
            found = connection.execute(f"PRAGMA table_info({quote(name)})").fetchall()
            known = self._columns[name] = {column[1].lower() for column in found}
        missing = [column for column in row if column.lower() not in known]
        if not known and missing:
            connection.execute(f"CREATE TABLE {quote(name)} ({', '.join(map(quote, missing))})")
            if key:
                columns = ", ".join(map(quote, key))
                connection.execute(f"CREATE INDEX {quote(name + ' key')} ON {quote(name)} ({columns})")
        else:
            for column in missing:
                connection.execute(f"ALTER TABLE {quote(name)} ADD COLUMN {quote(column)}")
        known.update(column.lower() for column in missing)

    def _ddl(self, connection: sqlite3.Connection, event: DdlEvent) -> None:
        kind, name = event.type_code, table_name(event.schema, event.table)
        self._columns.clear()
        if kind in _REMOVES_PARTITIONS:
            raise ConsumeError(f"{event.query!r} at commit_ts {event.commit_ts}: a SQLite file has no partitions")
        there = [str(one) for (one,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        if kind == ActionType.DROP_SCHEMA:
            gone = tables_of(connection, event.schema)
        else:
            gone = [name] if kind == ActionType.DROP_TABLE and name in there else []
        for one in gone:
            connection.execute(f"DROP TABLE {quote(one)}")
        if kind == ActionType.TRUNCATE_TABLE and name in there:
            connection.execute(f"DELETE FROM {quote(name)}")
        elif kind == ActionType.RENAME_TABLE:
            self._rename(connection, event, there)
        elif name in there:
            self._columns_of(connection, event, name)

    def _rename(self, connection: sqlite3.Connection, event: DdlEvent, there: list[str]) -> None:
        old = renamed_from(event)
        if old in there:
            new = table_name(event.schema, event.table)
            connection.execute(f"DROP INDEX IF EXISTS {quote(old + ' key')}")
            connection.execute(f"ALTER TABLE {quote(old)} RENAME TO {quote(new)}")

    def _columns_of(self, connection: sqlite3.Connection, event: DdlEvent, name: str) -> None:
        known = {column[1].lower() for column in connection.execute(f"PRAGMA table_info({quote(name)})")}
        for old, new in changed_names(event.query):
            if old.lower() in known and old.lower() != new.lower():
                connection.execute(f"ALTER TABLE {quote(name)} RENAME COLUMN {quote(old)} TO {quote(new)}")
        for column in dropped_columns(event.query):
            if column.lower() in known:
                connection.execute(f"DROP INDEX IF EXISTS {quote(name + ' key')}")
                connection.execute(f"ALTER TABLE {quote(name)} DROP COLUMN {quote(column)}")


def dropped_columns(query: str) -> list[str]:
    """Return the names after DROP [COLUMN] [IF EXISTS] in an ALTER TABLE."""
    words = list(tokens(query))
    if not words or not words[0].is_word("ALTER"):
        return []
    found = []
    for at, word in enumerate(words):
        rest = words[at + 1 : at + 5]
        if not word.is_word("DROP") or not rest or rest[0].is_word(*_NO_COLUMN):
            continue
        while rest and rest[0].is_word("COLUMN", "IF", "EXISTS"):
            rest = rest[1:]
        if rest and rest[0].is_name:
            found.append(rest[0].value)
    return found


def renamed_from(event: DdlEvent) -> str:
    """Return the table that RENAME TABLE a TO b, or ALTER TABLE a RENAME TO b, renames. Raises ConsumeError."""
    words = list(tokens(event.query))
    if len(words) > 2 and words[0].is_word("ALTER") and words[1].is_word("TABLE") and words[2].is_name:
        if len(words) > 4 and words[3].value == "." and words[4].is_name:
            return table_name(words[2].value, words[4].value)
        return table_name(event.schema, words[2].value)
    try:
        (pair,) = rename_pairs(event.query)
    except (RenameUnreadable, ValueError):
        raise ConsumeError(f"{event.query!r} at commit_ts {event.commit_ts}: which table is renamed?") from None
    return table_name(pair.old_schema or event.schema, pair.old)


def _values(row: Mapping[str, object]) -> list[object]:
    return [
        small_int(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in row.values()
    ]
