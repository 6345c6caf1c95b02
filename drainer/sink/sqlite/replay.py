"""A SQLite file as a replayer's destination: rows, DDL and position of a step share one transaction.

Files and messages contain the values of rows but no table definitions. So a table is created with its first row, has no
types, and stores values as they are: an ENUM or SET may be its number. A row is found by its key, if its message names
one, or by the values of all its columns. Rows of messages bring new columns; those of files must have the table's.

DDL is MySQL's text, run on tables that have nothing but names, columns and rows. Statements on indexes, views, defaults
and options have no effect on them. A statement that may change values, or that is not understood, is refused.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.ddl.lexer import Unexpected, Words
from drainer.protocol.errors import MessageError
from drainer.protocol.event import ColumnValue, Image, RowEvent, Value, key_of
from drainer.row.column_type import small_int
from drainer.sink.replay import Replayed, ReplayedDdl, ReplayFailed, ReplaySettings, never, to_utc
from drainer.sink.sqlite.file import SQLiteFile, SQLiteSection
from drainer.sink.sqlite.rows import quote, rowid_name, table_name, tables_of

_NO_ROWS: Final = ("VIEW", "SEQUENCE", "INDEX", "DATABASE", "SCHEMA", "USER", "PLACEMENT")
_KEYS: Final = (
    "INDEX",
    "KEY",
    "UNIQUE",
    "PRIMARY",
    "CONSTRAINT",
    "FOREIGN",
    "FULLTEXT",
    "SPATIAL",
    "CHECK",
    "VECTOR",
    "STATS_EXTENDED",
)
_OPTIONS: Final = (
    *(
        "AUTO_INCREMENT",
        "COMMENT",
        "ENGINE",
        "AUTO_ID_CACHE",
        "AUTO_RANDOM_BASE",
        "SHARD_ROW_ID_BITS",
        "ALTER",
        "DEFAULT",
    ),
    *("CHARACTER", "CHARSET", "COLLATE", "CACHE", "NOCACHE", "SET", "FORCE", "ALGORITHM", "LOCK", "ANALYZE", "TTL"),
    *("TTL_ENABLE", "TTL_JOB_INTERVAL", "REMOVE", "ENABLE", "DISABLE", "PLACEMENT", "ROW_FORMAT", "ATTRIBUTES"),
)


class CannotRun(Exception):
    """A statement is not understood, or its effect on rows is not known."""


class TakesRows(CannotRun):
    """A statement removes rows, and its text does not say which."""


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the table's columns; empty if the table does not exist."""
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({quote(table)})")]


def make_table(connection: sqlite3.Connection, table: str, columns: Sequence[str], indexed: Sequence[str]) -> None:
    """`indexed`: columns by which rows are found; empty: no index."""
    connection.execute(f"CREATE TABLE {quote(table)} ({', '.join(map(quote, columns))})")
    if indexed:
        _index(connection, table, indexed)


def _index(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    connection.execute(f"CREATE INDEX {quote(f'{table} key')} ON {quote(table)} ({', '.join(map(quote, columns))})")


def _drop_index(connection: sqlite3.Connection, table: str) -> None:
    connection.execute(f"DROP INDEX IF EXISTS {quote(f'{table} key')}")


def run(connection: sqlite3.Connection, schema: str, statement: str, *, names_only: bool = False) -> None:
    """`names_only`: see ReplaySettings; everything else is then ignored. Raises CannotRun."""
    words = Words(statement, schema)
    try:
        _run(connection, words, names_only=names_only)
    except TakesRows:
        raise
    except (CannotRun, Unexpected) as error:
        if not names_only:
            raise CannotRun(str(error)) from error


def _run(connection: sqlite3.Connection, words: Words, *, names_only: bool) -> None:
    if words.take("CREATE"):
        words.skip("OR", "REPLACE", "UNIQUE", "GLOBAL", "TEMPORARY", "ALGORITHM", "DEFINER", "SQL", "FULLTEXT")
        if words.take("TABLE") and any(word.is_word("SELECT") for word in words.left):
            raise CannotRun("CREATE TABLE … SELECT")
    elif words.take("DROP"):
        _drop(connection, words)
    elif words.take("TRUNCATE"):
        words.take("TABLE")
        _for_table(connection, _table(words), "DELETE FROM {}")
    elif words.take("RENAME") and words.take("TABLE"):
        for part in words.parts():
            old = _table(part)
            part.expect("TO")
            _rename(connection, old, _table(part))
    elif words.take("ALTER"):
        _alter(connection, words, names_only=names_only)
    else:
        raise CannotRun("it is no DDL that is known here")


def _table(words: Words) -> str:
    """Return the SQLite name of the next table."""
    return table_name(*words.table())


def _takes_rows(part: Words) -> bool:
    """Whether this part of an ALTER TABLE removes the rows of a partition."""
    first = part.left[0] if part.left else None
    if first is None or not first.is_word("TRUNCATE", "EXCHANGE", "DROP"):
        return False
    return not first.is_word("DROP") or (len(part.left) > 1 and part.left[1].is_word("PARTITION"))


def _drop(connection: sqlite3.Connection, words: Words) -> None:
    if words.take("DATABASE", "SCHEMA"):
        words.skip("IF", "EXISTS")
        for name in tables_of(connection, words.name()):
            connection.execute(f"DROP TABLE {quote(name)}")
        return
    words.skip("GLOBAL", "TEMPORARY")
    if words.take(*_NO_ROWS):
        return
    words.expect("TABLE")
    words.skip("IF", "EXISTS")
    for part in words.parts():
        _for_table(connection, _table(part), "DROP TABLE {}")


def _for_table(connection: sqlite3.Connection, table: str, text: str) -> None:
    """Nothing for a table that has had no row."""
    if columns_of(connection, table):
        connection.execute(text.format(quote(table)))


def _rename(connection: sqlite3.Connection, old: str, new: str) -> None:
    columns = columns_of(connection, old)
    if columns:
        _drop_index(connection, old)
        connection.execute(f"ALTER TABLE {quote(old)} RENAME TO {quote(new)}")
        _index(connection, new, columns[:1])


def _rename_column(connection: sqlite3.Connection, table: str, old: str, new: str) -> None:
    if old.lower() != new.lower():
        _expect_column(connection, table, old)
        connection.execute(f"ALTER TABLE {quote(table)} RENAME COLUMN {quote(old)} TO {quote(new)}")


def _alter(connection: sqlite3.Connection, words: Words, *, names_only: bool) -> None:
    words.skip("IGNORE")
    if words.take(*_NO_ROWS):
        return
    words.expect("TABLE")
    table, parts = _table(words), words.parts()
    has_rows = bool(columns_of(connection, table))
    if (has_rows or names_only) and any(map(_takes_rows, parts)):
        raise TakesRows("rows of a partition are taken away, and a SQLite file has no partitions")
    if not has_rows:
        return
    for part in parts:
        try:
            table = _alter_part(connection, table, part, names_only=names_only)
        except (CannotRun, Unexpected):
            if not names_only:
                raise


def _alter_part(connection: sqlite3.Connection, table: str, part: Words, *, names_only: bool) -> str:
    """Return the table's name from then on."""
    if part.take("ADD"):
        if not names_only:
            _add(connection, table, part)
    elif part.take("DROP"):
        _drop_part(connection, table, part)
    elif part.take("RENAME"):
        return _rename_part(connection, table, part)
    elif names_only and part.take("CHANGE"):
        part.take("COLUMN")
        part.skip("IF", "EXISTS")
        _rename_column(connection, table, part.name(), part.name())
    elif not part.take(*_OPTIONS):
        raise CannotRun(f"{part.left[0].value if part.left else 'ALTER TABLE'} may change rows")
    return table


def _add(connection: sqlite3.Connection, table: str, words: Words) -> None:
    if words.take(*_KEYS, "PARTITION"):
        return
    words.take("COLUMN")
    words.skip("IF", "NOT", "EXISTS")
    name = words.name()
    if any(word.is_word("GENERATED", "AS") for word in words.left):
        return  # no row has it
    connection.execute(f"ALTER TABLE {quote(table)} ADD COLUMN {quote(name)}")
    value = _default(words)
    if value is not None:
        connection.execute(f"UPDATE {quote(table)} SET {quote(name)}=?", (value,))


def _default(words: Words) -> str | int | None:
    """Return the value of a new column in existing rows: the literal of DEFAULT, if the text alone determines it."""
    left = words.left
    is_whole = bool(left) and left[0].is_word(
        "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "BOOL", "BOOLEAN"
    )
    is_text = bool(left) and left[0].is_word("CHAR", "VARCHAR")
    at = next((n for n, word in enumerate(left) if word.is_word("DEFAULT")), None)
    is_not_null = any(a.is_word("NOT") and b.is_word("NULL") for a, b in itertools.pairwise(left))
    if at is None:
        if not is_not_null:
            return None
        if is_whole or is_text:
            return 0 if is_whole else ""
        raise CannotRun("a column without DEFAULT that is NOT NULL, of a type other than integers and strings")
    sign = -1 if left[at + 1 : at + 2] and left[at + 1].value == "-" else 1
    word = left[at + (2 if sign < 0 else 1)] if len(left) > at + (sign < 0) + 1 else None
    if word is None or word.is_word("NULL"):
        return None
    text = word.value[1:-1] if word.kind == "text" else word.value
    if is_whole and text.isdigit():
        return sign * int(text)
    if is_text and word.kind == "text" and not {"\\", "'", '"'} & set(text):
        return text
    raise CannotRun(f"DEFAULT {word.value} of a column of type {left[0].value}")


def _drop_part(connection: sqlite3.Connection, table: str, words: Words) -> None:
    if words.take(*_KEYS):
        return
    words.take("COLUMN")
    words.skip("IF", "EXISTS")
    name = words.name()
    _expect_column(connection, table, name)
    _drop_index(connection, table)
    connection.execute(f"ALTER TABLE {quote(table)} DROP COLUMN {quote(name)}")
    _index(connection, table, columns_of(connection, table)[:1])


def _expect_column(connection: sqlite3.Connection, table: str, name: str) -> None:
    if name.lower() not in {column.lower() for column in columns_of(connection, table)}:
        raise CannotRun(f"the table has no column {name}")


def _rename_part(connection: sqlite3.Connection, table: str, words: Words) -> str:
    if words.take("INDEX", "KEY"):
        return table
    if words.take("COLUMN"):
        old = words.name()
        words.expect("TO")
        _rename_column(connection, table, old, words.name())
        return table
    words.skip("TO", "AS")
    words.mark("=")
    new = _table(words)
    _rename(connection, table, new)
    return new


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
