"""Applies DDL on whole partitions row by row, because SQLite has no partitions. Runs inside a transaction."""

from __future__ import annotations

import sqlite3
from typing import Final

from binlog.tidb.flatten import flatten
from binlog.tidb.job import ActionType

from drainer.row.layout import replicated
from drainer.row.partition.locate import PartitionUnknown, locator
from drainer.schema.catalog import partition_ids
from drainer.schema.steps import Located, TableChange
from drainer.sink.sqlite.layout import quote, rowid_name, table_name

TAKES_ROWS: Final = frozenset({ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION})


def take_rows(connection: sqlite3.Connection, changes: tuple[TableChange, ...]) -> None:
    """The rows of the partitions that go are deleted. Raises PartitionUnknown."""
    for change in changes:
        if change.before is not None and change.after is not None:
            lost = partition_ids(change.before.info) - partition_ids(change.after.info)
            name, rowid = _names(change.before)
            places = [(place,) for place in _rows_in(connection, change.before, lost)]
            connection.executemany(f"DELETE FROM {name} WHERE {rowid} = ?", places)


def exchange(connection: sqlite3.Connection, changes: tuple[TableChange, ...]) -> None:
    """The rows of one partition and those of a table change places. Raises PartitionUnknown."""
    parted, normal = changes
    if parted.before is None or parted.after is None or normal.before is None:
        raise PartitionUnknown("a table of the exchange is not known")
    moving = _rows_in(connection, parted.before, partition_ids(parted.before.info) - partition_ids(parted.after.info))
    (name, rowid), (other, _) = _names(parted.before), _names(normal.before)
    columns = ", ".join(quote(column.name) for column in replicated(parted.before.info))
    theirs = ", ".join(quote(column.name) for column in replicated(normal.before.info))
    marks = ", ".join("?" * len(replicated(parted.before.info)))
    ours = [connection.execute(f"SELECT {columns} FROM {name} WHERE {rowid} = ?", (n,)).fetchone() for n in moving]
    coming = connection.execute(f"SELECT {theirs} FROM {other}").fetchall()
    connection.executemany(f"DELETE FROM {name} WHERE {rowid} = ?", [(place,) for place in moving])
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
    for place, *values in connection.execute(f"SELECT {wanted} FROM {name}"):
        row = {c.id: flatten(value, c.type) for c, value in zip(columns, values, strict=True)}
        if locate(row) in partitions:
            found.append(place)
    return found
