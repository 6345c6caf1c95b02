"""The change stream of every table of the recordings, replayed: what is left is what TiDB's own tables held."""

from __future__ import annotations

import datetime
import decimal
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from binlog.tidb.job import ActionType, Job
from pyspark.sql import types as spark

from drainer.row.codec import in_order
from drainer.row.transaction import scan
from drainer.schema.history.base import JobHistory, Name, Watched, watch
from drainer.spark.typed.fields import Reading, SchemaChanged, ValueUnfit, fields_of
from drainer.spark.typed.rows import Changes
from tests.golden.compare import split_name
from tests.support.capture import GOLDEN, CaptureSet

Cells = tuple[Any, ...]
CHANGES = (ActionType.ADD_COLUMN, ActionType.DROP_COLUMN, ActionType.MODIFY_COLUMN, ActionType.RENAME_TABLE)


def history_of(capture: CaptureSet) -> JobHistory:
    return JobHistory(Job.from_json(document) for document in json.loads(capture.jobs_text))


def rows_of(capture: CaptureSet, reading: Reading) -> list[dict[str, Any]]:
    """Decoded by columns and row by row, with equal results."""
    by_columns, by_rows = (_batch(capture, reading, rows_min) for rows_min in (1, 1 << 40))
    assert by_columns == by_rows
    found: list[dict[str, Any]] = by_rows.to_pylist()
    assert repr(by_columns.to_pylist()) == repr(found)  # -0.0 and 0.0 differ here
    return found


def _batch(capture: CaptureSet, reading: Reading, vector_rows_min: int) -> pa.RecordBatch:
    changes = Changes(reading, vector_rows_min=vector_rows_min)
    for transaction in in_order([scan(payload) for payload in capture.binlogs]):
        changes.add(transaction.payload)
    return changes.batch()


def replayed(rows: list[dict[str, Any]]) -> Counter[Cells]:
    """Rows as they stand in the table; a `before` that does not stand there fails."""
    standing: Counter[Cells] = Counter()
    for row in rows:
        for image, step in ((row["before"], -1), (row["after"], 1)):
            if image is not None:
                cells = tuple(image.values())
                standing[cells] += step
                assert standing[cells] >= 0, (row["kind"], row["commit_ts"], cells)
    return +standing


def applied(rows: list[dict[str, Any]], key: tuple[str, ...]) -> Counter[Cells]:
    """Rows of the shape "changelog", applied by key; a change that the table or the version cannot have fails."""
    table: dict[Cells, Cells] = {}
    changed: set[tuple[int, Cells]] = set()
    for row in rows:
        *cells, kind, version, _ = row.values()
        of = tuple(row[name] for name in key)
        assert (of in table) == (kind != "insert"), (kind, version, of)
        if kind in ("delete", "update_preimage"):
            assert table.pop(of) == tuple(cells), (kind, version, of)
        if kind == "update_preimage":
            table[of] = ()
            continue
        if kind != "delete":
            table[of] = tuple(cells)
        assert (version, of) not in changed
        changed.add((version, of))
    return Counter(table.values())


def parsed(cell: Any, kind: spark.DataType) -> Any:
    """What TiDB showed, as the type it should have arrived in."""
    if cell is None:
        return None
    if isinstance(cell, dict):
        data = bytes.fromhex(cell["hex"])
        if isinstance(kind, spark.LongType):
            return int.from_bytes(data, "big")
        return decimal.Decimal(int.from_bytes(data, "big")) if isinstance(kind, spark.DecimalType) else data
    if isinstance(kind, spark.ByteType | spark.ShortType | spark.IntegerType | spark.LongType):
        return int(cell)
    if isinstance(kind, spark.DecimalType):
        return decimal.Decimal(cell)
    if isinstance(kind, spark.FloatType | spark.DoubleType):
        return float(cell)
    if isinstance(kind, spark.DayTimeIntervalType):
        sign = -1 if cell.startswith("-") else 1
        hours, minutes, seconds = cell.lstrip("-").split(":")
        span = datetime.timedelta(hours=int(hours), minutes=int(minutes))
        return sign * (span + datetime.timedelta(microseconds=int(decimal.Decimal(seconds) * 1_000_000)))
    if isinstance(kind, spark.DateType | spark.TimestampNTZType | spark.TimestampType):
        return _moment(cell, kind)
    return cell


def _moment(text: str, kind: spark.DataType) -> Any:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None  # a zero date
    if isinstance(kind, spark.DateType):
        return found.date()
    return found.replace(tzinfo=datetime.UTC) if isinstance(kind, spark.TimestampType) else found


def rounded(value: Any, kind: spark.DataType) -> Any:
    """FLOAT is shown with fewer digits than Python's doubles have."""
    return f"{value:.5g}" if isinstance(kind, spark.FloatType) and value is not None else value


@pytest.mark.parametrize("name", ["types", "keys"])
def test_change_stream_of_recording_replays_to_upstreams_tables(name: str) -> None:
    capture = CaptureSet(GOLDEN / name)
    history = history_of(capture)
    compared = 0
    for full, expected in capture.tables().items():
        if expected.get("kind"):
            continue
        table = split_name(full, expected)
        watched = watch(history, [table])
        fields = fields_of(watched.newest)
        reading = Reading(watched, fields, watched.version)
        rows = rows_of(capture, reading)
        types = dict(zip(fields.names, fields.types, strict=True))
        places = [(n, types[column]) for n, column in enumerate(expected["columns"]) if column in types]
        wanted = Counter(tuple(rounded(parsed(row[n], kind), kind) for n, kind in places) for row in expected["rows"])
        order = [fields.names.index(column) for column in expected["columns"] if column in types]
        kinds = [fields.types[n] for n in order]
        ours: Counter[Cells] = Counter()
        for cells, count in replayed(rows).items():
            ours[tuple(rounded(cells[n], kind) for n, kind in zip(order, kinds, strict=True))] += count
        assert ours == wanted, full
        if fields.key:
            fed = _batch(capture, replace(reading, changelog=True), 1 << 40).to_pylist()
            assert applied(fed, fields.key) == replayed(rows), full
        assert {(row["schema"], row["table"]) for row in rows} <= {table}
        assert [row["commit_ts"] for row in rows] == sorted(row["commit_ts"] for row in rows)
        assert all(row["start_ts"] < row["commit_ts"] for row in rows)
        compared += len(rows)
    assert compared > 100


@pytest.mark.parametrize("name", ["ddl", "ddl_hard"])
def test_change_stream_reads_every_row_across_ddl(name: str) -> None:
    """By a query that is started when all is over, and, with what DDL added beside it, by one that was there before."""
    capture = CaptureSet(GOLDEN / name)
    history = history_of(capture)
    everything: set[Name] = set()
    for job in history:
        everything.update((job.schema_name, info.name) for info in (job.table_info, *job.multiple_table_infos) if info)
    count = 0
    for table in sorted(everything):
        watched = watch(history, [table])
        tables = {n: i for n, i in watched.newest.items() if not i.is_view and not i.is_sequence}
        if not tables:
            continue
        count += len(rows_of(capture, Reading(watched, fields_of(tables), watched.version, collect=True)))
    assert count > 100


def test_column_ddl_in_change_stream_is_error_or_added_column() -> None:
    """A query that is started before the DDL of the recording, table by table."""
    capture = CaptureSet(GOLDEN / "ddl")
    jobs = list(history_of(capture))
    told: set[str] = set()
    tried: Counter[ActionType] = Counter()
    for place, job in enumerate(jobs):
        info = job.table_info
        if info is None or job.schema_name == "mysql" or job.type not in CHANGES or tried[job.type] == 3:
            continue
        tried[job.type] += 1
        before = watch(JobHistory(jobs[:place]), [(job.schema_name, info.name)])
        tables = {n: i for n, i in before.newest.items() if not i.is_view and not i.is_sequence}
        if tables:
            told |= _at(capture, history_of(capture), before, tables)
    assert {"was dropped", "the type of column"} <= told


def _at(capture: CaptureSet, history: JobHistory, before: Watched, tables: Any) -> set[str]:
    watched = watch(history, list(tables))
    fields = fields_of(tables)
    told = set()
    try:
        rows_of(capture, Reading(watched, fields, before.version))
    except SchemaChanged as error:
        text = str(error)
        told = {what for what in ("was added", "was dropped", "it was renamed", "the type of column") if what in text}
    except ValueUnfit:
        pass
    rows = rows_of(capture, Reading(watched, fields, before.version, collect=True))
    assert "was added" not in told or any(row["added"] for row in rows)
    return told
