"""Tables of an SQLite file compared with their TableInfos."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.types import Flag

from drainer.ranges.load import creation
from drainer.schema.rules import AppliedRules
from drainer.schema.view import TableVersions
from drainer.sink.base import FirstStart, Identity
from drainer.sink.snapshot import SchemaDifference
from drainer.sink.sqlite.ddl import sqlite_differences
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.ddl_case import INT, TEXT, column, key, table
from tests.support.typed_columns import typed_table

TYPED = typed_table(name="typed").info
KEYS = (key("PRIMARY", 1, 0, unique=True, primary=True), key("u", 2, unique=True, number=2), key("k", 1, number=3))
KEYED = replace(
    table(column(1, "a", INT, Flag.NOT_NULL), column(2, "n", TEXT, Flag.NOT_NULL), column(3, "b", INT), keys=KEYS),
    name="keyed", is_common_handle=True,
)  # fmt: skip
TABLES = [TableVersions("d", 1, (1,), (info,)) for info in (TYPED, KEYED)]
DIFFERENT = {
    "ALTER TABLE `d.typed` DROP COLUMN tiny": (["column tiny: not there, INTEGER wanted"], True),
    "ALTER TABLE `d.typed` RENAME COLUMN day TO days": (
        ["column day: not there, TEXT wanted", "column days: TEXT there, not wanted"],
        True,
    ),
    "DROP TABLE `d.typed`": (["no such table"], True),
    "DROP INDEX `d.keyed.u`; CREATE UNIQUE INDEX `d.keyed.u` ON `d.keyed` (a);CREATE UNIQUE INDEX v ON `d.keyed` (b)": (
        [
            "index v: CREATE UNIQUE INDEX v ON `d.keyed` (b) there, not wanted",
            "index d.keyed.u: CREATE UNIQUE INDEX `d.keyed.u` ON `d.keyed` (a) there, "
            "CREATE UNIQUE INDEX `d.keyed.u` ON `d.keyed` (`b`) wanted",
        ],
        True,
    ),
    "DROP TABLE `d.keyed`; CREATE TABLE `d.keyed` (a, b INTEGER)": (
        [
            "column a: any type there, INTEGER NOT NULL PRIMARY KEY part 2 wanted",
            "column n: not there, TEXT NOT NULL PRIMARY KEY part 1 wanted",
            "index d.keyed.u: not there, CREATE UNIQUE INDEX `d.keyed.u` ON `d.keyed` (`b`) wanted",
            "index d.keyed.k: not there, CREATE INDEX `d.keyed.k` ON `d.keyed` (`n`) wanted",
        ],
        False,
    ),
}


@pytest.fixture
def created(tmp_path: Path) -> sqlite3.Connection:
    sink = SQLiteSink(tmp_path / "file")
    sink.open(Identity(7, "main", "one"), 100, FirstStart(loads=True))
    for number, one in enumerate(TABLES):
        sink.ddl(creation(100 + number, one, 100), may_exist=True)
    sink.close(clean=True)
    return sqlite3.connect(tmp_path / "file")


def differences(connection: sqlite3.Connection, *tables: TableVersions) -> list[SchemaDifference]:
    return list(sqlite_differences(connection, tables or TABLES))


def test_created_tables_do_not_differ_in_what_rows_depend_on(created: sqlite3.Connection) -> None:
    with contextlib.closing(created):
        assert differences(created) == []
        created.execute("CREATE INDEX further ON `d.keyed` (b)")
        assert differences(created) == []


@pytest.mark.parametrize("statements", DIFFERENT)
def test_difference_is_named_and_mended_where_sqlite_can(created: sqlite3.Connection, statements: str) -> None:
    what, can_mend = DIFFERENT[statements]
    with contextlib.closing(created):
        created.executescript(statements)
        found = differences(created)
        assert [one.what for one in found] == what
        assert {one.table for one in found} <= {"d.typed", "d.keyed"}
        assert all(one.statement for one in found) is can_mend
        if can_mend:
            created.executescript(";".join(one.statement for one in found))
            assert differences(created) == []


def test_column_that_rules_leave_out_may_be_there(created: sqlite3.Connection) -> None:
    info = replace(KEYED, columns=KEYED.columns[:2], indexes=(KEYED.indexes[0], KEYED.indexes[2]))
    applied = AppliedRules("d", info, (), None, frozenset({3}), ())
    ruled = replace(TABLES[1], applied=applied)
    with contextlib.closing(created):
        created.execute("DROP INDEX `d.keyed.u`")
        assert differences(created, ruled) == []
        assert len(differences(created, replace(ruled, applied=replace(applied, left_out=frozenset())))) == 1


def test_merged_tables_are_compared_once(created: sqlite3.Connection) -> None:
    with contextlib.closing(created):
        created.execute("DROP TABLE `d.keyed`")
        assert len(differences(created, TABLES[1], TABLES[1])) == 1
