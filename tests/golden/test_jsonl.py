"""The recordings as lines of changes: replayed one line after another, they make the tables that net rows make.

Two SQLite files: one written from net rows, as the drainer does, one from what the lines say and nothing else, with the
same DDLs in between.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from binlog.tidb.flatten import set_text
from binlog.tidb.table import TableInfo

from drainer.changes.stream import StreamDecoder
from drainer.row.column_type import TypeClass, small_int, type_class_of
from drainer.schema.errors import UnknownColumn
from drainer.schema.history.sources import FileSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.schema.segmenter import walk
from drainer.schema.steps import Ddl, Rows
from drainer.schema.view import SchemaView
from drainer.sink.base import Identity
from drainer.sink.sqlite.rows import quote, table_name
from drainer.sink.sqlite.sink import SQLiteSink
from tests.golden.test_ddl import replay
from tests.support import jsonl_case
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.jsonl_case import Line, place
from tests.support.recorded_steps import batch_of

pytestmark = pytest.mark.timeout(600)


class Reader:
    """Gives lines that were not given before, of all slots, in upstream's order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def lines(self) -> list[Line]:
        found: list[Line] = []
        for path in sorted(self._directory.glob("*.jsonl")):
            text = path.read_bytes()[self._read.get(path, 0) :]
            self._read[path] = self._read.get(path, 0) + len(text)
            found += map(json.loads, text.splitlines())
        return sorted(found, key=place)


class Replayer:
    """Runs lines on a SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.count = 0

    def run(self, line: Line, view: SchemaView) -> None:
        """Takes exactly one row away for an old one, and puts the new one."""
        info = table_of(view, line["schema"], line["table"])
        name = quote(table_name(line["schema"], line["table"]))
        if line["old"] is not None:
            wanted = " AND ".join(f"{quote(column)} IS ? COLLATE BINARY" for column in line["old"])
            place = f"SELECT rowid FROM {name} WHERE {wanted} LIMIT 1"
            values = list(cells(info, line["old"]))
            gone = self._connection.execute(f"DELETE FROM {name} WHERE rowid=({place})", values).rowcount
            assert gone == 1, line
        if line["new"] is not None:
            columns = ",".join(map(quote, line["new"]))
            marks = ",".join("?" * len(line["new"]))
            values = list(cells(info, line["new"]))
            self._connection.execute(f"INSERT INTO {name} ({columns}) VALUES ({marks})", values)
        self.count += 1


def table_of(view: SchemaView, schema: str, table: str) -> TableInfo:
    found = [at.current for at in view.tables.values() if (at.schema, at.current.name) == (schema, table)]
    assert len(found) == 1, (schema, table)
    return found[0]


def cells(info: TableInfo, image: dict[str, object]) -> Iterator[object]:
    """Values of a line as SQLite has them; docs/jsonl.md says how they are written."""
    kinds = {column.name: column.type for column in info.columns}
    for name, value in image.items():
        type_class = type_class_of(kinds[name])
        if isinstance(value, str) and type_class is TypeClass.BYTES:
            yield base64.b64decode(value, validate=True)
        elif isinstance(value, str) and type_class is TypeClass.TEXT:
            raw = value.encode("utf-8", "surrogateescape")
            yield value if raw == value.encode("utf-8", "replace") else raw
        elif isinstance(value, int) and type_class in (TypeClass.INT, TypeClass.BIT):
            yield small_int(value)
        elif isinstance(value, int) and type_class is TypeClass.ENUM:
            yield ""
        elif isinstance(value, int) and type_class is TypeClass.SET:
            yield set_text(value, kinds[name])
        elif isinstance(value, int | float) and type_class is TypeClass.FLOAT:
            yield float(value)
        else:
            yield value


def replayed(capture: CaptureSet, directory: Path) -> tuple[sqlite3.Connection, Replayer]:
    """The recording as lines, and these into a file."""
    begin_ts = int(capture.meta["scenario_start_ts"])
    who = Identity(capture.meta["cluster_id"], "golden", "golden")
    lines, tables = (
        jsonl_case.sink(directory / "lines", rotate_bytes=50_000),
        SQLiteSink(directory / "replayed"),
    )
    for destination in (lines, tables):
        destination.open(who, begin_ts)
    connection = tables._opened().connection
    replayer, reader = Replayer(connection), Reader(directory / "lines")
    batch = batch_of(capture)
    (directory / "jobs.json").write_bytes(capture.jobs_text)
    provider = SchemaProvider([FileSource(directory / "jobs.json")], Policy())
    schema = asyncio.run(provider.open(position_ts=begin_ts, job_done=lines.job_done))
    while batch.after_ts < batch.until_ts:
        try:
            for step in walk(batch, schema, job_done=lines.job_done):
                if isinstance(step, Ddl):
                    lines.ddl(step, may_exist=step.may_exist)
                    (line,) = reader.lines()
                    assert (line["kind"], line["job_id"], line["query"]) == ("ddl", step.job.id, step.query)
                    tables.ddl(step, may_exist=step.may_exist)
                elif isinstance(step, Rows):
                    payloads = [bytes(one.payload) for one in step.binlogs]
                    segment = StreamDecoder(step.view).segment(payloads, step.after_ts, step.until_ts)
                    lines.apply(segment, schema.applied_version)
                    for line in reader.lines():
                        replayer.run(line, step.view)
                    tables.advance(step.until_ts, schema.applied_version)
                else:
                    for destination in (lines, tables):
                        destination.advance(step.until_ts, schema.applied_version)
        except UnknownColumn as error:
            assert asyncio.run(provider.resolve_column(error)), error
        batch = batch.after(lines.commit_ts)
    lines.close(clean=True)
    return connection, replayer


def contents(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    names = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    return {
        name: sorted(connection.execute(f"SELECT * FROM {quote(name)}").fetchall(), key=repr)
        for name in names
        if not name.startswith(("tidb_binlog", "sqlite_"))
    }


@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_recorded_json_lines_replay_to_tables_of_net_rows(capture: CaptureSet, tmp_path: Path) -> None:
    net = SQLiteSink(tmp_path / "net")
    replay(capture, tmp_path / "net-jobs.json", net)
    connection, replayer = replayed(capture, tmp_path)
    wanted = contents(net._opened().connection)
    found = contents(connection)
    assert replayer.count > 100
    assert sum(map(len, wanted.values())) > 50
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        assert found[name] == rows, name
