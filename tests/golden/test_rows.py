"""Every row a real TiDB wrote, read with the schema of its day: nothing is refused, a delete has the columns that it
carries (D-TR-05), and it can be written again.

The rows are kept as they would stand in the table, by their values; what is left at the end is what TiDB's own
tables held, column by column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from binlog.pb import binlog_pb2
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import Text, missing_value, to_text
from binlog.tidb.job import ActionType, Job
from binlog.tidb.mutation import DELETE, INSERT, UPDATE, PrewriteValue, parse_prewrite
from binlog.tidb.row import (
    decode_delete,
    decode_insert,
    decode_update,
    encode_delete,
    encode_insert,
    encode_update,
    handle_columns,
)
from binlog.tidb.table import TableInfo
from binlog.tidb.types import Tp

from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.tidb_codecs import encode_row, to_python

Values = dict[int, Datum]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capture" not in metafunc.fixturenames:
        return
    paths: list[Path] = metafunc.config.getoption("--captures") or [GOLDEN]
    sets = [found for path in paths if path.exists() for found in find_sets(path)]
    marks = () if sets else (pytest.mark.skip(reason="no recording there"),)
    metafunc.parametrize("capture", sets or [pytest.param(None, marks=marks)], ids=[s.name for s in sets] or ["none"])


class History:
    """Every version of every table, and the database it was in last."""

    def __init__(self, capture: CaptureSet) -> None:
        self.jobs = [Job.from_json(document) for document in json.loads(capture.jobs_text)]
        self.versions: dict[int, list[tuple[int, TableInfo]]] = {}
        self.database: dict[int, str] = {}
        for job in sorted(self.jobs, key=lambda job: job.schema_version):
            tables = (*((job.table_info,) if job.table_info else ()), *job.multiple_table_infos)
            for table in tables if job.took_effect else ():
                self.versions.setdefault(table.id, []).append((job.schema_version, table))
                self.database[table.id] = job.schema_name

    @property
    def only_creates(self) -> bool:
        """No DDL moves, drops or changes rows."""
        own = [job for job in self.jobs if job.took_effect and job.schema_name != "mysql"]
        return {job.type for job in own} <= {ActionType.CREATE_SCHEMA, ActionType.CREATE_TABLE, ActionType.DROP_SCHEMA}

    def at(self, table_id: int, version: int) -> TableInfo | None:
        found = [table for since, table in self.versions.get(table_id, ()) if since <= version]
        return found[-1] if found else None


class Written(NamedTuple):
    """One row of a recording."""

    table: TableInfo
    kind: int
    row: bytes


def rows_of(capture: CaptureSet, history: History) -> Iterator[Written]:
    for payload in capture.binlogs:
        value = binlog_pb2.Binlog.FromString(payload).prewrite_value
        parsed = parse_prewrite(value)
        for table_id, kind, row in parsed.rows() if value else ():
            table = history.at(table_id, parsed.schema_version)
            if table is not None:  # else a table of TiDB's own, older than its history
                yield Written(table, kind, row)


def decode(written: Written) -> list[Values]:
    table, kind, row = written
    if kind == INSERT:
        return [decode_insert(table, row)[1]]
    return list(decode_update(row)) if kind == UPDATE else [decode_delete(table, row)]


def test_every_recorded_value_converts_to_text_and_python(capture: CaptureSet) -> None:
    count = 0
    for written in rows_of(capture, History(capture)):
        for values in decode(written):
            for column in written.table.columns:
                value = values[column.id] if column.id in values else missing_value(column)
                shown, python = to_text(value, column.type), to_python(value, column.type)
                assert (shown is None) == (python is None) == (value is None)
            count += 1
    assert count


def _is_stable(history: History, table: TableInfo) -> bool:
    """No column came or went: else rows may carry columns in states the history does not show."""
    return len({tuple(c.id for c in version.columns) for _, version in history.versions[table.id]}) == 1


def test_recorded_rows_are_encoded_again_to_equal_bytes(capture: CaptureSet) -> None:
    history = History(capture)
    count = 0
    for written in rows_of(capture, history):
        table, kind, row = written
        if not _is_stable(history, table):
            continue
        found = decode(written)
        if kind == UPDATE:
            again = encode_update(table, *found)
        else:
            again = encode_insert(table, found[0]) if kind == INSERT else encode_delete(table, found[0])
        if again != row:
            # Weights of a collation are not computed here, so behind such a handle only the ROW must agree.
            assert kind == INSERT
            assert any(column.type.collate.endswith("_ci") for column, _ in handle_columns(table)), table.name
            values = {n: v for n, v in found[0].items() if encode_row({n: v}) in row}
            assert row.endswith(encode_row(values))
        count += 1
    assert count


def test_recorded_transactions_are_built_again_to_equal_bytes(capture: CaptureSet) -> None:
    count = 0
    for payload in capture.binlogs:
        binlog = binlog_pb2.Binlog.FromString(payload)
        if not binlog.prewrite_value:
            continue
        parsed = parse_prewrite(binlog.prewrite_value)
        value = PrewriteValue(parsed.schema_version)
        add = {INSERT: value.insert, UPDATE: value.update, DELETE: value.delete}
        for table_id, kind, row in parsed.rows():
            add[kind](table_id, row)
        assert value.serialize() == binlog.prewrite_value
        count += 1
    assert count


def test_recorded_jobs_convert_to_json_and_back_without_loss(capture: CaptureSet) -> None:
    """Nothing the history says is lost but the difference between an empty list and null."""

    def within(part: object, whole: object, path: str) -> None:
        if isinstance(part, dict) and part:
            assert isinstance(whole, dict), path
            for key, value in part.items():
                assert key in whole, f"{path}.{key}"
                within(value, whole[key], f"{path}.{key}")
        elif isinstance(part, list) and part:
            assert isinstance(whole, list), path
            for n, (left, right) in enumerate(zip(part, whole, strict=True)):
                within(left, right, f"{path}[{n}]")
        else:
            assert (part or None) == (whole or None), path

    for document in json.loads(capture.jobs_text):
        job = Job.from_json(document)
        within(document, job.to_json(), f"job {job.id}")
        assert Job.from_json(job.dump()) == job


def _comparable(shown: Text, tp: Tp) -> object:
    """As a recording of the text protocol has it; TiDB shows FLOATs from 1e15 up with six digits."""
    if tp == Tp.FLOAT and isinstance(shown, str):
        return f"{float(shown):.5e}"
    return {"hex": shown.hex().upper()} if isinstance(shown, bytes) else shown


def _recorded(value: object, tp: Tp) -> object:
    if tp == Tp.FLOAT and isinstance(value, str):
        return f"{float(value):.5e}"
    return {"hex": value["hex"].upper()} if isinstance(value, dict) else value


def test_recorded_rows_replayed_give_rows_tidb_held(capture: CaptureSet) -> None:
    history = History(capture)
    if not history.only_creates:
        pytest.skip("its DDL moves and changes rows: the drainer's own tests replay it")
    expected = capture.tables("expected")
    left: dict[int, list[Values]] = {}
    for written in rows_of(capture, history):
        table = written.table
        if f"{history.database[table.id]}.{table.name}" not in expected:
            continue
        columns = [c for c in table.public_columns if not c.is_generated]
        images = [{c.id: v[c.id] if c.id in v else missing_value(c) for c in columns} for v in decode(written)]
        rows = left.setdefault(table.id, [])
        if written.kind == INSERT:
            rows.append(images[0])
        else:
            at = rows.index(images[0])
            rows[at : at + 1] = images[1:]
    compared = 0
    for table_id, rows in left.items():
        table = history.versions[table_id][-1][1]
        held = expected[f"{history.database[table_id]}.{table.name}"]
        columns = [c for c in table.public_columns if not c.is_generated and not c.hidden]
        places = [held["columns"].index(c.name) for c in columns]
        ours = [[_comparable(to_text(row[c.id], c.type), c.type.tp) for c in columns] for row in rows]
        theirs = [[_recorded(row[n], c.type.tp) for n, c in zip(places, columns, strict=True)] for row in held["rows"]]
        assert sorted(map(json.dumps, ours)) == sorted(map(json.dumps, theirs)), table.name
        compared += 1
    assert compared
