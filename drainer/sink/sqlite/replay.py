"""A SQLite file as reparo's destination: rows, DDL and position of a step share one transaction.

The files contain the values of rows but no table definitions. So a table is created with its first row, has no keys,
and stores values as they are in the files: an ENUM or SET is its number. A row is found by the values of all its
columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.row.scalar import small_int
from drainer.sink.replay import Replayed, ReplayedDdl, ReplayFailed, ReplaySettings, never
from drainer.sink.replay_time import to_utc
from drainer.sink.sqlite.file import SQLiteFile
from drainer.sink.sqlite.layout import quote, rowid_name, table_name
from drainer.sink.sqlite.replay_ddl import CannotRun, columns_of, make_table, run
from drainer.sink.sqlite.section import SQLiteSection

Cells = Mapping[str, int | float | str | bytes | None]


def make(to: SQLiteSection, settings: ReplaySettings) -> SQLiteReplayer:
    """Return the destination, not opened yet."""
    return SQLiteReplayer(Path(to.path), settings)


class SQLiteReplayer:
    """See replay.Replayer."""

    def __init__(self, path: Path, settings: ReplaySettings) -> None:
        self._path = path
        self._settings = settings
        self._table = quote(table_name("tidb_binlog", settings.table))
        self._zone = ZoneInfo(settings.zone)
        self._file: SQLiteFile | None = None

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    def open(self, is_left_out: Callable[[ReplayedDdl], bool] = never) -> str:
        """Return the position. A DDL is in one transaction with it, so none is ever continued."""
        self._file = SQLiteFile(self._path)
        with self._file.transaction() as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (name TEXT PRIMARY KEY, position TEXT)")
            query = f"SELECT position FROM {self._table} WHERE name=?"
            row = connection.execute(query, (self._settings.name,)).fetchone()
        return "" if row is None else str(row[0])

    def apply(self, transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None = None) -> None:
        with self._opened().transaction() as connection:
            for one in transactions:
                for event in one.events:
                    assert isinstance(event, FileEvent)
                    self._write(connection, event, one.commit_ts)
            if ddl is not None:
                self._run(connection, ddl)
            connection.execute(f"REPLACE INTO {self._table} VALUES (?,?)", (self._settings.name, position))
            crash_point("replay.before_commit")
        crash_point("replay.after_commit")

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

    def _run(self, connection: sqlite3.Connection, ddl: ReplayedDdl) -> None:
        for statement in ddl.statements:
            try:
                run(connection, ddl.use, statement)
            except (CannotRun, sqlite3.Error) as error:
                remedy = self._settings.remedy.format(commit_ts=ddl.commit_ts)
                raise ddl.failed(
                    f"SQLite cannot do what this does: {error}; after having done it by hand, {remedy}. The statement: "
                    f"{statement}"
                ) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> SQLiteFile:
        assert self._file is not None, "open() comes first"
        return self._file
