"""DDL for SQLite, made from TableInfo before and after, never from MySQL's text. Runs inside a transaction.

Changes that SQLite's ALTER TABLE does not support are made by rebuilding the table. Indexes are created and dropped
until they match the TableInfo.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from binlog.runtime.log import get_logger
from binlog.tidb.flatten import flatten, missing_value
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, TableInfo

from drainer.ddl.table_diff import paired
from drainer.row.column_type import ColumnType
from drainer.row.layout import replicated
from drainer.row.partition import PartitionUnknown, locator
from drainer.schema import job_kinds
from drainer.schema.catalog import removed_partitions
from drainer.schema.merged import SourceRows
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.schema.view import TableVersions
from drainer.sink import recycle_names
from drainer.sink.base import Identity
from drainer.sink.errors import DdlFailed
from drainer.sink.recycle_names import Kept
from drainer.sink.snapshot import Found, SchemaDifference, differences, of_each
from drainer.sink.sqlite.format import CannotConvert, Value, converter, noting, stored
from drainer.sink.sqlite.rows import (
    affinity,
    column_sql,
    create_table,
    indexes,
    primary_key,
    quote,
    rowid_name,
    table_name,
)

# The recycle bin of an SQLite file: dropped tables under names of ours, for as long as upstream may bring them back.
#
# See drainer/sink/recycle_names.py. Everything happens in the step's own transaction.


_PREFIX = table_name(recycle_names.SCHEMA, "")


class RecycleBin:
    """The dropped tables of one changefeed. `keep_ms` 0: no table is added; those that are in the bin can be recovered
    and expire."""

    def __init__(self, identity: Identity, keep_ms: int) -> None:
        self._tag = recycle_names.tag(identity)
        self._keep_ms = keep_ms
        self.keeps = keep_ms > 0

    def put_away(self, connection: sqlite3.Connection, step: Ddl, table: Located) -> None:
        """Rename a table, which must be there and have no index, into the bin."""
        kept = recycle_names.name_for(
            self._tag, commit_ts=step.commit_ts, job_id=step.job.id, table_id=table.table_id, table=table.name
        )
        _rename(connection, table_name(table.schema, table.name), _PREFIX + kept)

    def bring_back(self, connection: sqlite3.Connection, table: Located) -> bool:
        """Rename the table of this id back, under the name it has now. False when it is not in the bin."""
        kept = recycle_names.latest(self._read(connection), table.table_id)
        if kept is None:
            return False
        _rename(connection, _PREFIX + kept.name, table_name(table.schema, table.name))
        return True

    def purge(self, connection: sqlite3.Connection, position_ts: int) -> None:
        """Drop what has expired."""
        for table in self._read(connection):
            if table.is_expired(position_ts, self._keep_ms):
                connection.execute(f"DROP TABLE {quote(_PREFIX + table.name)}")
                _log.info("table deleted from the recycle bin", table=table.name, job_id=table.job_id)

    def _read(self, connection: sqlite3.Connection) -> list[Kept]:
        rows = connection.execute(
            "SELECT substr(name, ?) FROM sqlite_master WHERE type='table' AND substr(name, 1, ?)=?",
            (len(_PREFIX) + 1, len(_PREFIX), _PREFIX),
        )
        return recycle_names.kept(self._tag, (str(row[0]) for row in rows.fetchall()))


def _rename(connection: sqlite3.Connection, old: str, new: str) -> None:
    connection.execute(f"ALTER TABLE {quote(old)} RENAME TO {quote(new)}")


# Applies DDL on whole partitions row by row, because SQLite has no partitions. Runs inside a transaction.


def take_rows(connection: sqlite3.Connection, changes: tuple[TableChange, ...]) -> None:
    """The rows of the partitions that go are deleted. Raises PartitionUnknown."""
    for change in changes:
        if change.before is not None and change.after is not None:
            lost = removed_partitions(change.before.info, change.after.info)
            name, rowid = _names(change.before)
            rowids = [(row_id,) for row_id in _rows_in(connection, change.before, lost)]
            connection.executemany(f"DELETE FROM {name} WHERE {rowid} = ?", rowids)


def exchange(connection: sqlite3.Connection, changes: tuple[TableChange, ...]) -> None:
    """The rows of one partition and those of a table change places. Raises PartitionUnknown."""
    parted, normal = changes
    if parted.before is None or parted.after is None or normal.before is None:
        raise PartitionUnknown("a table of the exchange is not known")
    moving = _rows_in(connection, parted.before, removed_partitions(parted.before.info, parted.after.info))
    (name, rowid), (other, _) = _names(parted.before), _names(normal.before)
    columns = ", ".join(quote(column.name) for column in replicated(parted.before.info))
    theirs = ", ".join(quote(column.name) for column in replicated(normal.before.info))
    marks = ", ".join("?" * len(replicated(parted.before.info)))
    ours = [connection.execute(f"SELECT {columns} FROM {name} WHERE {rowid} = ?", (n,)).fetchone() for n in moving]
    coming = connection.execute(f"SELECT {theirs} FROM {other}").fetchall()
    connection.executemany(f"DELETE FROM {name} WHERE {rowid} = ?", [(row_id,) for row_id in moving])
    connection.execute(f"DELETE FROM {other}")
    connection.executemany(f"INSERT INTO {name} ({columns}) VALUES ({marks})", coming)
    connection.executemany(f"INSERT INTO {other} ({theirs}) VALUES ({marks})", ours)


def _names(table: Located) -> tuple[str, str]:
    columns = [column.name for column in replicated(table.info)]
    return quote(table_name(table.schema, table.name)), rowid_name(columns)


def _rows_in(connection: sqlite3.Connection, table: Located, partitions: set[int]) -> list[int]:
    """Return the rowids of the rows that belong to these partitions."""
    locate, columns = locator(table.info), replicated(table.info)
    name, rowid = _names(table)
    wanted = ", ".join([rowid, *(quote(column.name) for column in columns)])
    found = []
    for row_id, *values in connection.execute(f"SELECT {wanted} FROM {name}"):
        row = {c.id: flatten(value, c.type) for c, value in zip(columns, values, strict=True)}
        if locate(row) in partitions:
            found.append(row_id)
    return found


_log = get_logger(__name__)

_RETURNS: Final = frozenset({ActionType.RECOVER_TABLE, ActionType.RECOVER_SCHEMA})


def run(connection: sqlite3.Connection, step: Ddl, bin_: RecycleBin, *, may_exist: bool) -> None:
    """Do to the file what the job did upstream. Raises DdlFailed."""
    if step.job.type == ActionType.FLASHBACK_CLUSTER:  # it brings the whole past back, which SQLite does not keep
        raise _failed(step, f"SQLite cannot do what {step.job.type.name} does")
    try:
        if step.job.type == ActionType.EXCHANGE_TABLE_PARTITION:
            exchange(connection, step.changes)
            return
        if step.job.type in job_kinds.REMOVES_PARTITIONS:
            take_rows(connection, step.changes)
        for change in step.changes:
            if change.rows is not None and not change.rows.sets:
                _change_rows(connection, change, change.rows)
            _change(connection, step, change, bin_, may_exist=may_exist)
            if change.rows is not None and change.rows.sets:
                _change_rows(connection, change, change.rows)
    except (sqlite3.Error, CannotConvert, PartitionUnknown) as error:
        raise _failed(step, str(error)) from error


def _change_rows(connection: sqlite3.Connection, change: TableChange, rows: SourceRows) -> None:
    assert change.after is not None
    name = quote(table_name(change.after.schema, change.after.name))
    sets = ", ".join(f"{quote(column.name)} = ?" for column in rows.sets)
    head = f"UPDATE {name} SET {sets}" if sets else f"DELETE FROM {name}"
    values = [_default(column) for column in (*rows.sets, rows.source)]
    connection.execute(f"{head} WHERE {quote(rows.source.name)} = ?", values)


def _failed(step: Ddl, detail: str) -> DdlFailed:
    return DdlFailed(
        f"DDL job {step.job.id} (commit_ts {step.commit_ts}) failed in SQLite: {detail}\n"
        f"  statement: {step.query}\n"
        f"  to leave it out, after having done by hand what it should do, add to the configuration:\n"
        f"  [[syncer.ddl-rewrite]]\n  job-id = {step.job.id}\n  sql = []",
        job_id=step.job.id,
        commit_ts=step.commit_ts,
    )


def _is_table(table: Located | None) -> bool:
    return table is not None and not table.info.is_view and not table.info.is_sequence


def _change(
    connection: sqlite3.Connection, step: Ddl, change: TableChange, bin_: RecycleBin, *, may_exist: bool
) -> None:
    before = change.before if _is_table(change.before) else None
    after = change.after if _is_table(change.after) else None
    if before is None and after is None:
        _log.info("DDL has no equivalent in SQLite; nothing to run", job=step.job.id, query=step.query)
    elif before is None and after is not None:
        if step.job.type in _RETURNS:
            _bring_back(connection, step, after, bin_, may_exist=may_exist)
        else:
            _create(connection, after, may_exist=may_exist)
    elif before is not None and after is None:
        _put_away(connection, step, before, bin_)
    elif before is not None and after is not None:
        if step.job.type == ActionType.TRUNCATE_TABLE:
            _put_away(connection, step, before, bin_)
            _create(connection, after, may_exist=False)
        else:
            _alter(connection, step, before, after)


def _put_away(connection: sqlite3.Connection, step: Ddl, table: Located, bin_: RecycleBin) -> None:
    name = table_name(table.schema, table.name)
    if bin_.keeps and _exists(connection, name):
        _drop_indexes(connection, name)
        bin_.put_away(connection, step, table)
    else:
        connection.execute(f"DROP TABLE IF EXISTS {quote(name)}")


def _bring_back(
    connection: sqlite3.Connection, step: Ddl, table: Located, bin_: RecycleBin, *, may_exist: bool
) -> None:
    name = table_name(table.schema, table.name)
    if bin_.bring_back(connection, table):
        _sync_indexes(connection, name, table.info)
    elif not (may_exist and _exists(connection, name)):
        raise _failed(
            step,
            f"{name} (id {table.table_id}) is not in the recycle bin: it was dropped before replication began, or "
            f"longer ago than syncer.recycle-bin says",
        )


def _create(connection: sqlite3.Connection, after: Located, *, may_exist: bool) -> None:
    name = table_name(after.schema, after.name)
    if may_exist and _exists(connection, name):
        return
    connection.execute(create_table(name, after.info))
    _sync_indexes(connection, name, after.info)


def _exists(connection: sqlite3.Connection, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,))
    return found.fetchone() is not None


def _alter(connection: sqlite3.Connection, step: Ddl, before: Located, after: Located) -> None:
    old, new = table_name(before.schema, before.name), table_name(after.schema, after.name)
    if old != new:
        _drop_indexes(connection, old)
        _rename(connection, old, new)
    pairs = paired(replicated(before.info), replicated(after.info), step.query)
    added = _only_added(before.info, after.info, pairs)
    if added is None:
        _rebuild(connection, new, after.info, pairs)
    for column in added or ():
        connection.execute(_add_column_sql(connection, new, column))
    _sync_indexes(connection, new, after.info)


def _same_column(was: ColumnInfo, now: ColumnInfo) -> bool:
    return (
        was.name == now.name
        and affinity(was.type) == affinity(now.type)
        and was.is_not_null == now.is_not_null
        and converter(was.type, now.type) is None
    )


def _only_added(before: TableInfo, after: TableInfo, pairs: dict[int, ColumnInfo]) -> tuple[ColumnInfo, ...] | None:
    """Return the columns to append, none if the table stays as it is; None if the change does anything else."""
    now, was = replicated(after), replicated(before)
    if primary_key(before) != primary_key(after):
        return None
    for column, old in zip(now, was, strict=False):
        paired = pairs.get(column.id)
        if paired is None or paired.id != old.id or not _same_column(paired, column):
            return None
    return now[len(was) :] if len(now) >= len(was) else None


def _default(column: ColumnInfo) -> Value:
    """Return the value of the new column in rows that were written before it was added."""
    return stored(ColumnType.of(column.type), missing_value(column))


def _add_column_sql(connection: sqlite3.Connection, name: str, column: ColumnInfo) -> str:
    """ALTER TABLE that appends a column with the value it has in rows that were written before."""
    value = _default(column)
    clause = "" if value is None else f" DEFAULT {_literal(connection, value)}"
    return f"ALTER TABLE {quote(name)} ADD COLUMN {column_sql(column)}{clause}"


def _literal(connection: sqlite3.Connection, value: Value) -> str:
    (text,) = connection.execute("SELECT quote(?)", (value,)).fetchone()
    return str(text)


def _rebuild(connection: sqlite3.Connection, name: str, after: TableInfo, pairs: dict[int, ColumnInfo]) -> None:
    """A new table, every row copied and converted, the old one dropped, the new one named as it was."""
    fresh = name + ".rebuilt"
    connection.execute(create_table(fresh, after))
    sources: list[str] = []
    unconverted: list[str] = []
    for column in replicated(after):
        was = pairs.get(column.id)
        if was is None:
            sources.append(_literal(connection, _default(column)))
            continue
        convert = converter(was.type, column.type)
        if convert is None:
            sources.append(quote(was.name))
        else:
            function = f"convert_{column.id}"
            connection.create_function(function, 1, noting(column.name, convert, unconverted), deterministic=True)
            sources.append(f"{function}({quote(was.name)})")
    names = ", ".join(quote(column.name) for column in replicated(after))
    try:
        connection.execute(f"INSERT INTO {quote(fresh)} ({names}) SELECT {', '.join(sources)} FROM {quote(name)}")
    except sqlite3.OperationalError as error:
        raise (CannotConvert(f"table {name}, {unconverted[0]}") if unconverted else error) from error
    connection.execute(f"DROP TABLE {quote(name)}")
    _rename(connection, fresh, name)


def _drop_indexes(connection: sqlite3.Connection, name: str) -> None:
    for index in _indexes(connection, name):
        connection.execute(f"DROP INDEX {quote(index)}")


def _indexes(connection: sqlite3.Connection, name: str) -> dict[str, str]:
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type='index' AND tbl_name=? AND sql IS NOT NULL", (name,)
    )
    return {str(index): str(sql) for index, sql in rows.fetchall()}


def _sync_indexes(connection: sqlite3.Connection, name: str, table: TableInfo) -> None:
    """Drop what is not wanted or differs, make what is missing."""
    have, want = _indexes(connection, name), indexes(name, table)
    for index, sql in have.items():
        if want.get(index) != sql:
            connection.execute(f"DROP INDEX {quote(index)}")
    for index, sql in want.items():
        if have.get(index) != sql:
            connection.execute(sql)


# The table that is wanted, and the one that is there (drainer.sink.snapshot).

_STORED: Final = """
SELECT 'column', name, CASE type WHEN '' THEN 'any type' ELSE type END || CASE "notnull" WHEN 1 THEN ' NOT NULL' ELSE ''
 END || CASE pk WHEN 0 THEN '' ELSE ' PRIMARY KEY part ' || pk END FROM pragma_table_info(:table)
UNION ALL SELECT 'index', name, sql FROM sqlite_master WHERE type='index' AND tbl_name=:table AND sql > ''"""


def sqlite_differences(connection: sqlite3.Connection, tables: Iterable[TableVersions]) -> Iterator[SchemaDifference]:
    """Compare tables of a view with those of the file."""
    return of_each(tables, lambda table: _compared(connection, table))


def _compared(connection: sqlite3.Connection, table: TableVersions) -> Found:
    info, name = table.current, table_name(table.schema, table.name)
    create = "; ".join([create_table(name, info), *indexes(name, info).values()])
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(create)
        there, wanted = (
            {(kind, one.lower()): text for kind, one, text in each.execute(_STORED, {"table": name}).fetchall()}
            for each in (connection, memory)
        )
    if not there:
        yield "no such table", create
        return
    columns = {one.name.lower(): one for one in replicated(info)}
    for what, kind, one, found, asked in differences(table, there, wanted):
        if kind == "index":
            yield what, "; ".join(filter(None, (found and f"DROP INDEX {quote(one)}", asked)))
        elif asked is None:
            yield what, f"ALTER TABLE {quote(name)} DROP COLUMN {quote(one)}"
        else:
            can_add = found is None and "PRIMARY KEY" not in asked
            yield what, _add_column_sql(connection, name, columns[one]) if can_add else ""
