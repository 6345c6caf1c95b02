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
from drainer.protocol.event import ColumnValue, Image, RowEvent, Value, key_of
from drainer.row.text import small_int
from drainer.sink.replay import Replayed, ReplayedDdl, ReplayFailed, ReplaySettings, never, to_utc
from drainer.sink.sqlite.file import SQLiteFile, SQLiteSection
from drainer.sink.sqlite.layout import quote, rowid_name, table_name
from drainer.sink.sqlite.replay_ddl import CannotRun, columns_of, make_table, run

# Rows of files and of messages as a SQLite file has them. Pure.
Cells = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class RowChange:
    """`removed`: images of rows to remove, one after another; `key`: the names of the table's key, of which each image
    then consists, "()" for none: an image has all columns, and one row is removed. `added`: the new row, empty for
    none. `is_whole`: the columns are those of the table at that time."""

    removed: tuple[Cells, ...]
    added: Cells
    key: tuple[str, ...]
    is_whole: bool


def of_file(event: RowEvent, zone: tzinfo | None, *, safe: bool) -> RowChange:
    """`zone`: that of TIMESTAMPs, None: UTC; `safe`: the new row may exist. Raises MessageError."""
    added = _cells(event.new or {}, zone)
    removed = () if event.old is None else (_cells(event.old, zone),)
    return RowChange((*removed, added) if safe and added else removed, added, (), is_whole=True)


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
    removed = _cells(image)
    return RowChange((removed,) if removed else (), _cells(new), key, is_whole=False)


def _cells(image: Image, zone: tzinfo | None = None) -> Cells:
    return {name: _cell(cell, zone) for name, cell in image.items()}


def _cell(cell: ColumnValue, zone: tzinfo | None) -> Value:
    value = cell.value
    if isinstance(value, int):
        return small_int(int(value))
    if zone is not None and cell.type_code == Tp.TIMESTAMP and isinstance(value, str):
        return to_utc(value, zone)
    return value


def make(to: SQLiteSection, settings: ReplaySettings) -> SQLiteReplayer:
    """Return the destination, not opened yet."""
    return SQLiteReplayer(Path(to.path), settings)


class SQLiteReplayer:
    """See replay.Replayer."""

    def __init__(self, path: Path, settings: ReplaySettings) -> None:
        self._path = path
        self.name = f"sqlite:{path}"
        self._settings = settings
        self._table = quote(table_name("tidb_binlog", settings.table))
        self._zone = None if settings.zone == "UTC" else ZoneInfo(settings.zone)
        self._columns: dict[str, list[str]] = {}  # of tables that rows of this transaction have
        self._file: SQLiteFile | None = None

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

    def _write(self, connection: sqlite3.Connection, event: RowEvent, commit_ts: int) -> None:
        label = f"`{event.schema}`.`{event.table}`"
        table, settings = table_name(event.schema, event.table), self._settings
        try:
            row = of_message(event) if settings.names_only else of_file(event, self._zone, safe=settings.safe)
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
