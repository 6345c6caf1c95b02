"""A SQLite file as a replayer's destination: rows, DDL and position of a step share one transaction.

Files and messages contain the values of rows but no table definitions. So a table is created with its first row, has no
types, and stores values as they are: an ENUM or SET may be its number. A row is found by its key, if its message names
one, or by the values of all its columns. Rows of messages bring new columns; those of files must have the table's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, RowEvent, key_of
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.row.text import small_int
from drainer.sink.replay import Replayed, ReplayedDdl, ReplayFailed, ReplaySettings, never, to_utc
from drainer.sink.sqlite.file import SQLiteFile
from drainer.sink.sqlite.layout import quote, rowid_name, table_name
from drainer.sink.sqlite.replay_ddl import CannotRun, columns_of, make_table, run
from drainer.sink.sqlite.section import SQLiteSection

# Rows of files and of messages as a SQLite file has them. Pure.
Cells = Mapping[str, int | float | str | bytes | None]


@dataclass(frozen=True, slots=True)
class RowChange:
    """`removed`: images of rows to remove, one after another; `key`: the names of the table's key, of which each image
    then consists, "()" for none: an image has all columns, and one row is removed. `added`: the new row, empty for
    none. `is_whole`: the columns are those of the table at that time."""

    removed: tuple[Cells, ...]
    added: Cells
    key: tuple[str, ...]
    is_whole: bool


def of_file(event: FileEvent, zone: tzinfo | None, *, safe: bool) -> RowChange:
    """`zone`: that of TIMESTAMPs, None: UTC; `safe`: the new row may exist. Raises MessageError."""
    old = {column.name: _cell(column, column.value, zone) for column in event.columns}
    new = old
    if event.change is Change.UPDATE:
        new = {column.name: _cell(column, column.changed, zone) for column in event.columns}
    removed = () if event.change is Change.INSERT else (old,)
    if event.change is Change.DELETE:
        return RowChange(removed, {}, (), is_whole=True)
    return RowChange((*removed, new) if safe else removed, new, (), is_whole=True)


def _cell(column: FileColumn, value: PlainValue, zone: tzinfo | None) -> int | float | str | bytes | None:
    if isinstance(value, int):
        return small_int(int(value))
    if not isinstance(value, bytes) or "blob" in column.type_name or "binary" in column.type_name:
        return value
    if column.type_code == Tp.TIMESTAMP and zone is not None:
        value = to_utc(value, zone)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def of_message(event: RowEvent) -> RowChange:
    """An insert may be repeated, so it removes the row of its key."""
    new = event.new or {}
    key = tuple(key_of(event) or ())
    if event.new is not None and event.old is None:
        image = {name: new[name] for name in key if name in new}
    else:
        image = {**new, **(event.old or {})}
        if key:
            of_key = event.key if event.key is not None and not event.old else image
            image = {name: of_key[name] for name in key if name in of_key}
    removed = {name: _small(column.value) for name, column in image.items()}
    added = {name: _small(column.value) for name, column in new.items()}
    return RowChange((removed,) if removed else (), added, key, is_whole=False)


def _small(value: int | float | str | bytes | None) -> int | float | str | bytes | None:
    return small_int(value) if isinstance(value, int) else value


def make(to: SQLiteSection, settings: ReplaySettings) -> SQLiteReplayer:
    """Return the destination, not opened yet."""
    return SQLiteReplayer(Path(to.path), settings)


class SQLiteReplayer:
    """See replay.Replayer."""

    def __init__(self, path: Path, settings: ReplaySettings) -> None:
        self._path = path
        self._settings = settings
        self._table = quote(table_name("tidb_binlog", settings.table))
        self._zone = None if settings.zone == "UTC" else ZoneInfo(settings.zone)
        self._columns: dict[str, list[str]] = {}  # of tables that rows of this transaction have
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
        self._columns.clear()
        with self._opened().transaction() as connection:
            for one in transactions:
                for event in one.events:
                    self._write(connection, event, one.commit_ts)
            if ddl is not None:
                self._run(connection, ddl)
            connection.execute(f"REPLACE INTO {self._table} VALUES (?,?)", (self._settings.name, position))
            crash_point("replay.before_commit")
        crash_point("replay.after_commit")

    def _write(self, connection: sqlite3.Connection, event: FileEvent | RowEvent, commit_ts: int) -> None:
        label = f"`{event.schema}`.`{event.table}`"
        table = table_name(event.schema, event.table)
        try:
            if isinstance(event, RowEvent):
                row = of_message(event)
            else:
                row = of_file(event, self._zone, safe=self._settings.safe)
            self._prepare(connection, table, row)
            for image in row.removed:
                self._remove(connection, table, image, row)
            if row.added:
                marks = ",".join("?" * len(row.added))
                names = ",".join(map(quote, row.added))
                connection.execute(f"INSERT INTO {quote(table)} ({names}) VALUES ({marks})", list(row.added.values()))
        except (MessageError, sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise ReplayFailed(f"{label}: {error}", commit_ts=commit_ts, table=label) from error

    def _prepare(self, connection: sqlite3.Connection, table: str, row: RowChange) -> None:
        """Create the table, and add the columns that it lacks. Raises MessageError if a file's row has others."""
        there = self._columns.get(table)
        if there is None:
            there = self._columns[table] = columns_of(connection, table)
        wanted = list(dict.fromkeys(name for image in (*row.removed, row.added) for name in image))
        if not there and wanted:
            make_table(connection, table, wanted, row.key or (wanted[:1] if row.is_whole else ()))
            there += wanted
        elif row.is_whole and set(there) != set(wanted):
            raise MessageError(f"the table here has the columns {sorted(there)}, and the row {sorted(wanted)}")
        else:
            known = {name.lower() for name in there}
            for name in wanted:
                if name.lower() not in known:
                    connection.execute(f"ALTER TABLE {quote(table)} ADD COLUMN {quote(name)}")
                    there.append(name)

    def _remove(self, connection: sqlite3.Connection, table: str, image: Cells, row: RowChange) -> None:
        found = " AND ".join(f"{quote(name)} IS ?" for name in image)
        if not row.key:
            rowid = rowid_name(self._columns[table])
            found = f"{rowid}=(SELECT {rowid} FROM {quote(table)} WHERE {found} LIMIT 1)"
        count = connection.execute(f"DELETE FROM {quote(table)} WHERE {found}", list(image.values())).rowcount
        if count != 1 and not self._settings.safe:
            raise MessageError(
                f"no such row, so the destination is not what it was upstream at that time; -safe-mode goes over it: "
                f"{dict(image)!r:.300}"
            )

    def _run(self, connection: sqlite3.Connection, ddl: ReplayedDdl) -> None:
        remedy = self._settings.remedy.format(commit_ts=ddl.commit_ts)
        by_hand = f"; after having done it by hand, {remedy}" if remedy else ""
        for statement in ddl.statements:
            try:
                run(connection, ddl.use, statement, names_only=self._settings.names_only)
            except (CannotRun, sqlite3.Error) as error:
                raise ddl.failed(
                    f"SQLite cannot do what this does: {error}{by_hand}. The statement: {statement}"
                ) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> SQLiteFile:
        assert self._file is not None, "open() comes first"
        return self._file
