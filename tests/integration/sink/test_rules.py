"""Routes, columns and rows end to end: binlogs with DDLs in between, into MariaDB and SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, TableInfo

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut
from drainer.config import Config
from drainer.pipeline import Pipeline
from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from drainer.schema.view import TableVersions
from drainer.sink.base import AnySink, Identity
from drainer.sink.mysql.connection import connect
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.mysql.snapshot import server_differences
from drainer.sink.snapshot import SchemaDifference
from drainer.sink.sqlite.ddl import sqlite_differences
from drainer.sink.sqlite.sink import SQLiteSink
from tests.integration.sink.case import server_config
from tests.support.local_batch import LocalBatch
from tests.support.row_case import INT, TEXT, Step, table, transaction
from tests.support.schema_case import BEGIN_TS, ddl, ts
from tests.support.servers import MariaDB
from tests.unit.drainer.schema.test_merged import ROUTE, shard
from tests.unit.drainer.test_pipeline import StubProvider

pytestmark = pytest.mark.integration

KINDS = [("id", INT), ("email", TEXT), ("region", TEXT), ("secret", TEXT), ("note", TEXT), ("secret_2", TEXT)]
FIRST, SECOND, THIRD = (table(KINDS[:count], handle="id", name="c", table_id=10) for count in (4, 5, 6))
RENAMED = replace(THIRD, name="customers")
RULES = {
    "hash-key": "k",
    "routes": [{"schema-pattern": "shop", "target-schema": "eu"}],
    "columns": [{"schema-pattern": "shop", "leave-out": ["secret*"], "mask": {"email": "last-four"}}],
    "rows": [{"schema-pattern": "shop", "where": "region = 'eu'"}],
}
KINDS_OF_JOBS = [
    (ActionType.CREATE_TABLE, FIRST),
    (ActionType.ADD_COLUMN, SECOND),
    (ActionType.ADD_COLUMN, THIRD),
    (ActionType.RENAME_TABLE, RENAMED),
]
JOBS = [Job(id=1, type=ActionType.CREATE_SCHEMA, schema_version=1, schema_id=2, db_info=DBInfo(2, "shop"))] + [
    Job(id=n, type=kind, schema_version=n, schema_id=2, table_id=10, table_info=info, query="ALTER TABLE c …")
    for n, (kind, info) in enumerate(KINDS_OF_JOBS, start=2)
]


Row = dict[int, object]


def row(key: int, region: str, *more: str) -> Row:
    cells = (key, f"user{key}@x.org", region, "s", *more)
    return {n: cell.encode() if isinstance(cell, str) else cell for n, cell in enumerate(cells, start=1)}


def binlogs() -> list[bytes]:
    """Each DDL, and after it rows of the table that it made."""

    def rows(
        step: int, version: int, info: TableInfo, *steps: tuple[str, dict[int, object], dict[int, object]]
    ) -> bytes:
        made: list[tuple[TableInfo, Step]] = [(info, one) for one in steps]  # type: ignore[misc]
        return transaction(made, commit_ts=ts(step), version=version)

    def ran(step: int, job_id: int) -> bytes:
        return ddl(ts(step), job_id, "ALTER TABLE c …").payload

    return [
        ran(1, 1),
        ran(2, 2),
        rows(3, 2, FIRST, ("insert", {}, row(1, "eu")), ("insert", {}, row(2, "us")), ("insert", {}, row(3, "eu"))),
        ran(4, 3),
        rows(5, 3, SECOND, ("insert", {}, row(4, "eu", "n")), ("update", row(2, "us", "n"), row(2, "eu", "come"))),
        ran(6, 4),
        rows(
            7,
            4,
            THIRD,
            ("update", row(3, "eu", "n", "s"), row(3, "us", "gone", "s")),
            ("delete", row(1, "eu", "", ""), {}),
        ),
        ran(8, 5),
        rows(
            9,
            5,
            RENAMED,
            ("update", row(4, "eu", "n", "s"), row(4, "eu", "new", "s")),
            ("insert", {}, row(5, "us", "", "")),
        ),
        rows(10, 5, RENAMED, ("insert", {}, row(6, "eu", "n", "s"))),
    ]


EXPECTED = [
    (2, "*******.org", "eu", "come"),
    (4, "*******.org", "eu", "new"),
    (6, "*******.org", "eu", "n"),
]


def replicate(
    destination: AnySink, rules: object, jobs: list[Job], binlogs: list[bytes], *until_ts: int
) -> Collection[TableVersions]:
    """In the driver up to the last but one of these positions, then, if the destination can, distributed. Return the
    tables of the view at the end."""
    policy = Config.model_validate({"syncer": rules}).syncer.policy()
    position = destination.open(Identity(7, "main", "drainer-1"), BEGIN_TS)
    schema = Schema.open(JobHistory(jobs), position_ts=position.commit_ts, job_done=destination.job_done, policy=policy)
    pipeline = Pipeline(destination, StubProvider(schema), Cut(2, 10, "d"), position_ts=position.commit_ts)
    last = Mode.DISTRIBUTED if destination.parallel is not None else Mode.DRIVER
    for at_ts in until_ts:
        batch = LocalBatch([binlogs], pipeline.position_ts, at_ts)
        mode = last if at_ts == until_ts[-1] else Mode.DRIVER
        pipeline.run(PlannedBatch(pipeline.position_ts, at_ts, mode, (), 1), batch)
    destination.close(clean=True)
    return schema.view().tables.values()


def differences(db: MariaDB, tables: Collection[TableVersions]) -> list[SchemaDifference]:
    with contextlib.closing(connect(server_config(db), idle_s=60, read_timeout_s=60)) as session:
        return list(server_differences(session, tables))


def test_tables_rows_and_ddls_reach_mariadb_by_rules(db: MariaDB) -> None:
    db.query("DROP DATABASE IF EXISTS eu")
    tables = replicate(MySQLSink(server_config(db)), RULES, JOBS, binlogs(), ts(5), ts(9), ts(10))
    assert differences(db, tables) == []
    names = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ('eu', 'shop')"
    assert db.query(names) == [("eu", "customers")]
    assert db.query("SELECT * FROM eu.customers ORDER BY id") == EXPECTED
    db.query("DROP DATABASE eu")


def test_tables_rows_and_ddls_reach_sqlite_by_rules(tmp_path: Path) -> None:
    file = tmp_path / "it.db"
    tables = replicate(SQLiteSink(file), RULES, JOBS, binlogs(), ts(5), ts(9), ts(10))
    connection = sqlite3.connect(file)
    assert list(sqlite_differences(connection, tables)) == []
    assert connection.execute('SELECT * FROM "eu.customers" ORDER BY id').fetchall() == EXPECTED
    connection.close()


class Shards:
    """Three shards of upstream: their DDLs and rows as a stream, and their rows by name and key."""

    def __init__(self) -> None:
        self.jobs, self.binlogs = JOBS[:1], [ddl(ts(1), 1, "CREATE DATABASE shop").payload]
        self.tables: dict[str, TableInfo] = {}
        self.rows: dict[str, dict[int, Row]] = {}

    def ddl(self, kind: ActionType, name: str, text: str) -> None:
        """`text`: the table after it, as in test_merged; '': it is dropped."""
        before, version = self.tables.pop(name, None), len(self.jobs) + 1
        info = shard(text) if text else before
        assert info is not None
        of = {"schema_id": 2, "table_id": info.id if before is None else before.id, "table_info": info}
        self.jobs.append(Job(id=version, type=kind, schema_version=version, query="…", **of))  # type: ignore[arg-type]
        self.binlogs.append(ddl(ts(len(self.binlogs) + 1), version, "…").payload)
        rows = self.rows.pop(name, {})
        if text:
            self.tables[info.name] = info
            new = {c.id: 5 for c in info.columns if c.default is not None}
            kept = {} if kind is ActionType.TRUNCATE_TABLE else rows
            self.rows[info.name] = {key: new | row for key, row in kept.items()}

    def write(self, name: str, kind: str, key: int, *cells: object) -> None:
        info, rows = self.tables[name], self.rows[name]
        old, new = rows.pop(key, {}), dict(zip((column.id for column in info.columns), (key, *cells), strict=False))
        one: Step = kind, old, {} if kind == "delete" else new  # type: ignore[assignment]
        self.binlogs.append(transaction([(info, one)], commit_ts=ts(len(self.binlogs) + 1), version=len(self.jobs)))
        if kind != "delete":
            rows[key] = new

    def shown(self) -> list[tuple[object, ...]]:
        return [
            (*(row[n] for n in sorted(row)), f"shop.{name}")
            for name, rows in sorted(self.rows.items())
            for _, row in sorted(rows.items())
        ]


def three_shards() -> tuple[Shards, list[int]]:
    """Equal keys and unique values in all; each DDL in the first, then in the others. Returns positions, too."""
    upstream, ends, names = Shards(), list[int](), [f"orders_{n}" for n in (1, 2, 3)]
    for n, name in enumerate(names, start=21):
        upstream.ddl(ActionType.CREATE_TABLE, name, f"{n}@{name} a u!a")
        for key in (1, 2, 3):
            upstream.write(name, "insert", key, 10 * key)
    ends.append(ts(len(upstream.binlogs)))
    for n, name in enumerate(names, start=1):
        upstream.ddl(ActionType.ADD_COLUMN, name, f"{20 + n}@{name} a b=5 u!a")
        for other in names:
            upstream.write(other, "update", n, *([10 * n + 1, 7][: len(upstream.tables[other].columns) - 1]))
    upstream.write(names[0], "delete", 2)
    ends.append(ts(len(upstream.binlogs)))
    for n, name in enumerate(names, start=21):
        upstream.ddl(ActionType.DROP_INDEX, name, f"{n}@{name} a b=5")
        upstream.write(name, "insert", 4, 11, 4)  # a value that is there
        upstream.ddl(ActionType.ADD_INDEX, name, f"{n}@{name} a b=5 i:b")
    upstream.ddl(ActionType.TRUNCATE_TABLE, names[1], f"32@{names[1]} a b=5 i:b")
    upstream.write(names[1], "insert", 1, 1, 1)
    upstream.ddl(ActionType.DROP_TABLE, names[2], "")
    upstream.ddl(ActionType.RENAME_TABLE, names[0], "21@orders_9 a b=5 i:b")
    ends.append(ts(len(upstream.binlogs)))
    for name in ("orders_9", names[1]):
        upstream.write(name, "update", 1, 2, 3)
        upstream.write(name, "insert", 7, 8, 9)
    upstream.write("orders_9", "delete", 4)
    return upstream, [*ends, ts(len(upstream.binlogs))]


def test_three_shards_reach_one_table_of_mariadb(db: MariaDB) -> None:
    db.query("DROP DATABASE IF EXISTS `all`")
    upstream, ends = three_shards()
    tables = replicate(MySQLSink(server_config(db)), {"routes": [ROUTE]}, upstream.jobs, upstream.binlogs, *ends)
    assert differences(db, tables) == []
    found = db.query("SELECT id, a, b, src FROM `all`.orders ORDER BY src, id")
    assert found == upstream.shown()
    keys = "SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = 'all'"
    assert sorted(db.query(keys)) == [("PRIMARY", "id"), ("PRIMARY", "src"), ("i", "b")]
    db.query("DROP DATABASE `all`")


def test_three_shards_reach_one_table_of_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "it.db"
    upstream, ends = three_shards()
    tables = replicate(SQLiteSink(file), {"routes": [ROUTE]}, upstream.jobs, upstream.binlogs, *ends)
    connection = sqlite3.connect(file)
    assert list(sqlite_differences(connection, tables)) == []
    found = connection.execute("SELECT id, a, b, src FROM `all.orders` ORDER BY src, id").fetchall()
    assert found == upstream.shown()
    connection.close()
