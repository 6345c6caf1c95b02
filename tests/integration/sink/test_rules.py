"""Routes, columns and rows end to end: binlogs with DDLs in between, into MariaDB and SQLite."""

from __future__ import annotations

import sqlite3
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
from drainer.sink.base import AnySink, Identity
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.sqlite.sink import SQLiteSink
from tests.integration.sink.case import server_config
from tests.support.local_batch import LocalBatch
from tests.support.row_case import INT, TEXT, Step, table, transaction
from tests.support.schema_case import BEGIN_TS, ddl, ts
from tests.support.servers import MariaDB
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


def replicate(destination: AnySink) -> None:
    """In the driver up to the last DDL, then, if the destination can, distributed."""
    policy = Config.model_validate({"syncer": RULES}).syncer.policy()
    position = destination.open(Identity(7, "main", "drainer-1"), BEGIN_TS)
    schema = Schema.open(JobHistory(JOBS), position_ts=position.commit_ts, job_done=destination.job_done, policy=policy)
    pipeline = Pipeline(destination, StubProvider(schema), Cut(2, 10, "d"), position_ts=position.commit_ts)
    last = Mode.DISTRIBUTED if destination.parallel is not None else Mode.DRIVER
    for until_ts, mode in ((ts(5), Mode.DRIVER), (ts(9), Mode.DRIVER), (ts(10), last)):
        batch = LocalBatch([binlogs()], pipeline.position_ts, until_ts)
        pipeline.run(PlannedBatch(pipeline.position_ts, until_ts, mode, (), 1), batch)
    destination.close(clean=True)


def test_tables_rows_and_ddls_reach_mariadb_by_rules(db: MariaDB) -> None:
    db.query("DROP DATABASE IF EXISTS eu")
    replicate(MySQLSink(server_config(db)))
    names = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ('eu', 'shop')"
    assert db.query(names) == [("eu", "customers")]
    assert db.query("SELECT * FROM eu.customers ORDER BY id") == EXPECTED
    db.query("DROP DATABASE eu")


def test_tables_rows_and_ddls_reach_sqlite_by_rules(tmp_path: Path) -> None:
    file = tmp_path / "it.db"
    replicate(SQLiteSink(file))
    connection = sqlite3.connect(file)
    assert connection.execute('SELECT * FROM "eu.customers" ORDER BY id').fetchall() == EXPECTED
    connection.close()
