"""Whole partitions in SQLite, whose tables have none."""

from __future__ import annotations

import sqlite3

from drainer.schema.steps import Located, TableChange
from drainer.sink.sqlite.ddl import exchange, take_rows
from drainer.sink.sqlite.layout import create_table
from tests.unit.drainer.row.test_partition import DROPPED, EXCHANGED, NORMAL, OLD, TRUNCATED


def filled() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for name, info, ids in (("d.t", OLD, (5, 15, 25)), ("d.n", NORMAL, (6, 7))):
        connection.execute(create_table(name, info))
        connection.executemany(f'INSERT INTO "{name}" VALUES (?, ?)', [(i, i * 10) for i in ids])
    return connection


def ids(connection: sqlite3.Connection, name: str) -> list[tuple[int, int]]:
    return connection.execute(f'SELECT id, v FROM "{name}" ORDER BY id').fetchall()


def test_truncated_or_dropped_partition_deletes_its_rows() -> None:
    for after in (TRUNCATED, DROPPED):
        connection = filled()
        take_rows(connection, (TableChange(Located(100, "d", OLD), Located(100, "d", after)),))
        assert ids(connection, "d.t") == [(15, 150), (25, 250)]


def test_exchanged_partition_swaps_its_rows_with_table() -> None:
    connection = filled()
    parted = TableChange(Located(100, "d", OLD), Located(100, "d", EXCHANGED))
    exchange(connection, (parted, TableChange(Located(150, "d", NORMAL), Located(201, "d", NORMAL))))
    assert ids(connection, "d.t") == [(6, 60), (7, 70), (15, 150), (25, 250)]
    assert ids(connection, "d.n") == [(5, 50)]
