"""The recordings of DDL in this process, without Spark and without one line of `ddl-rewrite`: what TableInfos tell is
printed for MariaDB, and what upstream brings back comes out of the recycle bin. Once with all MariaDB can have, once
with no more than rows depend on."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from drainer.changes.segment import SegmentDecoder
from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_tables import create_table
from drainer.schema.errors import UnknownColumn
from drainer.schema.history.sources import FileSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl, Rows, Step
from drainer.schema.view import TableVersions
from drainer.sink.base import Identity, NetSink
from drainer.sink.errors import UniqueConflict
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import connect
from drainer.sink.mysql.ddl.job_plan import Server
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.mysql.snapshot import server_differences
from drainer.sink.sqlite.ddl import sqlite_differences
from drainer.sink.sqlite.rows import quote, table_name
from drainer.sink.sqlite.sink import SQLiteSink
from tests.golden.compare import differences, split_name
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.recorded_steps import batch_of
from tests.support.servers import MariaDB

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def replay(capture: CaptureSet, jobs: Path, destination: NetSink) -> Schema:
    """Every binlog in one batch; what a batch finds out on its way is mended as drainer.apply.in_driver does it."""
    begin_ts = int(capture.meta["scenario_start_ts"])
    destination.open(Identity(capture.meta["cluster_id"], "golden", "golden"), begin_ts)
    batch = batch_of(capture)
    jobs.write_bytes(capture.jobs_text)
    provider = SchemaProvider([FileSource(jobs)], Policy())
    schema = asyncio.run(provider.open(position_ts=begin_ts, job_done=destination.job_done))
    while batch.after_ts < batch.until_ts:
        try:
            for step in walk(batch, schema, job_done=destination.job_done):
                apply(step, schema, destination)
        except UnknownColumn as error:
            assert asyncio.run(provider.resolve_column(error)), error
        except UniqueConflict as error:
            job = schema.job_that_drops(schema=error.schema, table=error.table, key=error.key)
            assert job is not None, error
            rest = batch.after(destination.commit_ts)
            schema.bring_forward(job, min(i.schema_version for i in rest.items if i.ddl is None))
        batch = batch.after(destination.commit_ts)
    return schema


def apply(step: Step, schema: Schema, destination: NetSink) -> None:
    if isinstance(step, Ddl):
        destination.ddl(step, may_exist=step.may_exist)
    elif isinstance(step, Rows):
        decoder, payloads = SegmentDecoder(step.view, destination.format), [bytes(one.payload) for one in step.binlogs]
        destination.apply(decoder.segment(payloads, step.after_ts, step.until_ts), schema.applied_version)
    else:
        destination.advance(step.until_ts, schema.applied_version)


@pytest.mark.parametrize("bare", [False, True], ids=["full", "bare"])
@pytest.mark.parametrize("name", ["ddl", "ddl_hard"])
def test_recorded_ddl_into_mariadb_needs_no_rewrite(
    name: str, bare: bool, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bare:
        full = Server.dialect
        monkeypatch.setattr(Server, "dialect", lambda self, zone="": full(self, zone).only_rows())
    capture = CaptureSet(GOLDEN / name)
    mariadb.reset()
    destination = MySQLSink(destination_config(mariadb))
    try:
        replay(capture, tmp_path / "jobs.json", destination)
    finally:
        destination.close(clean=True)
    assert differences(mariadb, capture) == []


@pytest.mark.parametrize("name", ["ddl", "ddl_hard"])
def test_recorded_ddl_ends_in_tables_of_last_table_infos(name: str, mariadb: MariaDB, tmp_path: Path) -> None:
    """Every difference added up is what the last TableInfo says: SHOW CREATE TABLE is the same, but for the order of
    the indexes and where the counter stands."""
    mariadb.reset()
    destination = MySQLSink(destination_config(mariadb))
    try:
        schema = replay(CaptureSet(GOLDEN / name), tmp_path / "jobs.json", destination)
    finally:
        destination.close(clean=True)
    dialect = Server("mariadb").dialect()
    tables = kept(schema)
    assert len(tables) > 10
    mariadb.query("CREATE DATABASE at_once")
    for table in tables:
        mariadb.query(create_table("at_once", table.current, dialect))
        assert shown(mariadb, table.schema, table.name) == shown(mariadb, "at_once", table.name)
        mariadb.query(f"DROP TABLE {quoted('at_once', table.name)}")
    with contextlib.closing(connect(destination_config(mariadb), idle_s=60, read_timeout_s=60)) as session:
        assert list(server_differences(session, tables)) == []


def destination_config(mariadb: MariaDB) -> ServerConfig:
    return ServerConfig(host=mariadb.host, port=mariadb.port, user=mariadb.user, password=mariadb.password)


def kept(schema: Schema) -> list[TableVersions]:
    return [one for one in schema.catalog.tables.values() if one.current.has_rows and one.schema != "mysql"]


def shown(mariadb: MariaDB, schema: str, table: str) -> tuple[list[str], list[str]]:
    """The columns in their order and the rest sorted, from SHOW CREATE TABLE."""
    text = str(mariadb.query(f"SHOW CREATE TABLE {quoted(schema, table)}")[0][1])
    lines = [line.rstrip(",") for line in re.sub(r" AUTO_INCREMENT=\d+", "", text).splitlines()]
    columns = [line for line in lines if line.startswith("  `")]
    return columns, sorted(line for line in lines if not line.startswith("  `"))


@pytest.mark.parametrize("name", ["ddl", "ddl_hard"])
def test_recorded_ddl_into_sqlite_needs_no_rewrite(name: str, tmp_path: Path) -> None:
    """Every row of every table is there, and none that upstream has not."""
    capture = CaptureSet(GOLDEN / name)
    destination = SQLiteSink(tmp_path / "downstream.sqlite")
    schema = replay(capture, tmp_path / "jobs.json", destination)
    destination.close(clean=True)
    counts = {}
    with sqlite3.connect(tmp_path / "downstream.sqlite") as connection:
        assert list(sqlite_differences(connection, kept(schema))) == []
        for full, expected in capture.tables("expected").items():
            if not expected.get("kind"):  # views and sequences
                table = quote(table_name(*split_name(full, expected)))
                (counts[full],) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
    wanted = {full: len(t["rows"]) for full, t in capture.tables("expected").items() if not t.get("kind")}
    assert counts == wanted
