"""A SQLite file as reparo's destination: rows, DDL and position of a step share one transaction.

The files contain the values of rows but no table definitions. So a table is created with its first row, has no keys,
and stores values as they are in the files: an ENUM or SET is its number. A row is found by the values of all its
columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.row.scalar import small_int
from drainer.sink.replay import Replayed, ReplayFailed, ReplayPosition, ReplaySettings
from drainer.sink.replay_time import to_utc
from drainer.sink.sqlite.file import SQLiteFile
from drainer.sink.sqlite.layout import quote, rowid_name, table_name
from drainer.sink.sqlite.replay_ddl import CannotRun, columns_of, make_table, run
from drainer.sink.sqlite.section import SQLiteSection

_POSITION: Final = quote(table_name("tidb_binlog", "reparo_position"))
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {_POSITION} (name TEXT PRIMARY KEY, file_number INTEGER, begin_at INTEGER, "
    "end_at INTEGER, crc INTEGER, commit_ts INTEGER, in_ddl INTEGER)"
)

Cells = Mapping[str, int | float | str | bytes | None]


def make(to: SQLiteSection, settings: ReplaySettings) -> SQLiteReplayer:
    """Return the destination, not opened yet."""
    return SQLiteReplayer(Path(to.path), settings)


class SQLiteReplayer:
    """See replay.Replayer."""

    def __init__(self, path: Path, settings: ReplaySettings) -> None:
        self._path = path
        self._settings = settings
        self._zone = ZoneInfo(settings.zone)
        self._file: SQLiteFile | None = None

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    def open(self) -> ReplayPosition | None:
        self._file = SQLiteFile(self._path)
        with self._file.transaction() as connection:
            connection.execute(_CREATE)
            query = f"SELECT file_number, begin_at, end_at, crc, commit_ts, in_ddl FROM {_POSITION} WHERE name=?"
            row = connection.execute(query, (self._settings.name,)).fetchone()
        if row is None:
            return None
        number, begin, end, crc, commit_ts, in_ddl = row
        return ReplayPosition(number, begin, end, crc, commit_ts, bool(in_ddl))

    def apply(self, transactions: Sequence[Replayed], position: ReplayPosition) -> None:
        with self._opened().transaction() as connection:
            for one in transactions:
                for event in one.events:
                    self._write(connection, event, one.commit_ts)
            self._store(connection, position)
            crash_point("reparo.before_commit")
        crash_point("reparo.after_commit")

    def _write(self, connection: sqlite3.Connection, event: FileEvent, commit_ts: int) -> None:
        place = f"`{event.schema}`.`{event.table}`"
        table = table_name(event.schema, event.table)
        try:
            old = self._cells(event.columns, changed=False)
            new = self._cells(event.columns, changed=event.change is Change.UPDATE)
            there = columns_of(connection, table)
            if not there:
                make_table(connection, table, list(old))
            elif set(there) != set(old):
                raise MessageError(f"the table here has the columns {sorted(there)}, and the row {sorted(old)}")
            if event.change is not Change.INSERT:
                self._remove(connection, table, old, required=not self._settings.safe)
            if event.change is not Change.DELETE:
                if self._settings.safe:
                    self._remove(connection, table, new, required=False)
                marks = ",".join("?" * len(new))
                names = ",".join(map(quote, new))
                connection.execute(f"INSERT INTO {quote(table)} ({names}) VALUES ({marks})", list(new.values()))
        except (MessageError, sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise ReplayFailed(f"{place}: {error}", commit_ts=commit_ts, table=place) from error

    def _remove(self, connection: sqlite3.Connection, table: str, image: Cells, *, required: bool) -> None:
        found = " AND ".join(f"{quote(name)} IS ?" for name in image)
        rowid = rowid_name(image)
        row = f"SELECT {rowid} FROM {quote(table)} WHERE {found} LIMIT 1"
        count = connection.execute(f"DELETE FROM {quote(table)} WHERE {rowid}=({row})", list(image.values())).rowcount
        if required and count != 1:
            raise MessageError(
                f"no such row, so the destination is not what it was upstream at that time; -safe-mode goes over it: "
                f"{dict(image)!r:.300}"
            )

    def _cells(self, columns: Sequence[FileColumn], *, changed: bool) -> Cells:
        return {c.name: self._cell(c, c.changed if changed else c.value) for c in columns}

    def _cell(self, column: FileColumn, value: PlainValue) -> int | float | str | bytes | None:
        if isinstance(value, bool | int):
            return small_int(int(value))
        if not isinstance(value, bytes):
            return value
        if "blob" in column.type_name or "binary" in column.type_name:
            return value
        if column.type_code == Tp.TIMESTAMP and self._settings.zone != "UTC":
            value = to_utc(value, self._zone)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value

    def ddl(
        self,
        schema: str,
        statement: str,
        position: ReplayPosition,
        *,
        tables: Sequence[tuple[str, str]],
        repeated: bool,
    ) -> None:
        with self._opened().transaction() as connection:
            try:
                run(connection, schema, statement)
            except (CannotRun, sqlite3.Error) as error:
                raise ReplayFailed(
                    f"SQLite cannot do what this does: {error}; after having done it by hand, put {position.commit_ts} "
                    f"into ignore-txn-commit-ts. The statement: {statement}",
                    commit_ts=position.commit_ts,
                ) from error
            self._store(connection, position)

    def _store(self, connection: sqlite3.Connection, position: ReplayPosition) -> None:
        connection.execute(
            f"REPLACE INTO {_POSITION} VALUES (?,?,?,?,?,?,?)", (self._settings.name, *astuple(position))
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> SQLiteFile:
        assert self._file is not None, "open() comes first"
        return self._file
