"""The walk over a real TiDB's binlogs: DDLs in their places, every row with its table, its schema at the end."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from binlog import envelope
from binlog.pb import binlog_pb2

from drainer.batch.served import Batch, ServedBinlog, read_batch
from drainer.schema.filter import Filter
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.job_policy import Policy
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Advance, Ddl, Rows
from drainer.schema.view import SkipReason
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.schema_case import belongs

EVERYTHING = Policy(filter=Filter.create(ignore_schemas=()))
RESTARTS = 30


def sets_below(path: Path) -> list[CaptureSet]:
    """Sets of which this test needs less than those that are replayed through pumps."""
    here = CaptureSet(path)
    found = [here] if here.has("binlogs.bin") else [CaptureSet(p) for p in sorted(path.iterdir()) if p.is_dir()]
    return [s for s in found if s.has("binlogs.bin") and s.has("schema_tables.json")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recording" in metafunc.fixturenames:
        paths: list[Path] = metafunc.config.getoption("--captures") or [GOLDEN]
        sets = [found for path in paths for found in sets_below(path)]
        metafunc.parametrize("recording", [Recording(s) for s in sets], ids=[s.name for s in sets])


@dataclass(frozen=True)
class Recording:
    """A set as the drainer meets it."""

    capture: CaptureSet

    @property
    def begin_ts(self) -> int:
        return int(self.capture.meta["scenario_start_ts"])

    def history(self) -> JobHistory:
        return JobHistory(parse_jobs(_jobs_text(self.capture.directory), self.capture.name))

    def binlogs(self) -> tuple[ServedBinlog, ...]:
        return _binlogs(self.capture.directory)

    def batch(self) -> Batch:
        binlogs = self.binlogs()
        return read_batch(binlogs, after_ts=self.begin_ts, until_ts=max(b.commit_ts for b in binlogs))


@cache
def _jobs_text(directory: Path) -> str:
    return CaptureSet(directory).jobs_text.decode()


@cache
def _binlogs(directory: Path) -> tuple[ServedBinlog, ...]:
    scanned = [(envelope.scan(p), p) for p in CaptureSet(directory).binlogs]
    return tuple(ServedBinlog(e.commit_ts, e.start_ts, "pump1", p) for e, p in scanned)


def tables_of(schema: Schema) -> dict[int, tuple[str, str, tuple[tuple[int, str, int], ...]]]:
    """id → schema, name, columns."""
    return {
        i: (t.schema, t.name, tuple((c.id, c.name, int(c.state)) for c in t.current.columns))
        for i, t in schema.catalog.tables.items()
    }


def test_walk_over_recording_ends_with_upstreams_schema(recording: Recording) -> None:
    schema = Schema.open(recording.history(), position_ts=recording.begin_ts, policy=EVERYTHING)
    for _ in walk(recording.batch(), schema):
        pass
    upstream = {
        t["id"]: (db, t["name"]["O"], tuple((c["id"], c["name"]["O"], c["state"]) for c in t["cols"] or []))
        for db, tables in json.loads(recording.capture.read("schema_tables.json")).items()
        for t in tables
    }
    schemas = {place[0] for place in upstream.values()}
    assert {i: t for i, t in tables_of(schema).items() if t[0] in schemas} == upstream


def test_every_recorded_row_is_decoded_with_its_table(recording: Recording) -> None:
    """Only rows of truncated ids are left out; a row never meets a DDL it needs, nor misses one (rule 14)."""
    schema = Schema.open(recording.history(), position_ts=recording.begin_ts, policy=EVERYTHING)
    at_ts, left_out, mutations = recording.begin_ts, 0, 0
    for step in walk(recording.batch(), schema):
        if not isinstance(step, Rows):
            continue
        assert at_ts <= step.after_ts <= step.until_ts
        at_ts = step.until_ts
        view = pickle.loads(pickle.dumps(step.view))
        for binlog in step.binlogs:
            assert step.after_ts < binlog.commit_ts <= step.until_ts
            value = binlog_pb2.PrewriteValue()
            value.ParseFromString(binlog_pb2.Binlog.FromString(binlog.payload).prewrite_value)
            assert belongs(view, value.schema_version)
            for mutation in value.mutations:
                mutations += 1
                found = view.lookup(mutation.table_id, value.schema_version, binlog.commit_ts)
                if isinstance(found, SkipReason):
                    assert found is SkipReason.TRUNCATED
                    left_out += 1
                else:
                    assert found.at_version <= value.schema_version
    assert mutations > 100
    assert left_out == {"ddl": 1}.get(recording.capture.name, left_out)


def test_recorded_early_ddl_runs_before_rows_that_need_it(recording: Recording) -> None:
    """X-08: jobs that a row needed before their binlogs came, and rows that did so.

    Jobs 139 and 145 of `ddl` drop a column: before rows of versions in which it is on its way out."""
    history = recording.history()
    schema = Schema.open(history, position_ts=recording.begin_ts, policy=EVERYTHING)
    early = [s for s in walk(recording.batch(), schema) if isinstance(s, Ddl) and s.early]
    rows = sum(
        1
        for step in early
        for item in recording.batch().items
        if item.ddl is None and item.commit_ts < step.own_ts and item.schema_version >= step.job.schema_version
    )
    known = {
        "types": ([], 0),
        "keys": ([], 0),
        "ddl": ([139, 145, 175, 186, 354], 3),
        "ddl_hard": ([90, 91, 92, 95], 6),
    }
    found = ([s.job.id for s in early], rows)
    assert found == known.get(recording.capture.name, found)
    assert all(step.own_ts > step.commit_ts for step in early)


def test_recorded_ddl_runs_once_for_any_batches_and_restarts(recording: Recording) -> None:
    """The same DDLs in the same order: in one batch, in small ones, and reopened from the destination's position and
    marks after any step (also between a DDL's run and the next position)."""
    dice = random.Random(18)
    schema = Schema.open(recording.history(), position_ts=recording.begin_ts, policy=EVERYTHING)
    whole = [s.job.id for s in walk(recording.batch(), schema) if isinstance(s, Ddl)]

    binlogs = sorted(recording.binlogs(), key=lambda b: b.commit_ts)
    ends = sorted(dice.sample([b.commit_ts for b in binlogs], min(len(binlogs), RESTARTS)))
    ends.append(binlogs[-1].commit_ts)
    position, marks, done = recording.begin_ts, set[int](), list[int]()
    schema_2 = _reopened(recording, position, marks)
    for end in dict.fromkeys(ends):
        while position < end:
            batch = read_batch([b for b in binlogs if position < b.commit_ts <= end], after_ts=position, until_ts=end)
            for step in walk(batch, schema_2, job_done=marks.__contains__):
                if isinstance(step, Ddl):
                    done.append(step.job.id)
                    marks.add(step.job.id)
                    position = step.commit_ts
                else:
                    assert isinstance(step, Rows | Advance)
                    position = step.until_ts
                if dice.random() < 0.05:
                    schema_2 = _reopened(recording, position, marks)
                    break
    assert done == whole
    assert tables_of(schema_2) == tables_of(schema)


def _reopened(recording: Recording, position: int, marks: set[int]) -> Schema:
    return Schema.open(recording.history(), position_ts=position, job_done=set(marks).__contains__, policy=EVERYTHING)


def test_recorded_rename_exchange_and_drop_statements_are_rewritten_with_full_names(recording: Recording) -> None:
    """X-09, X-10, X-17 and DROP of several tables, with full names whatever the writer's database was. An exchange is
    not validated again: upstream did, and its rows are what counts."""
    if recording.capture.name != "ddl_hard":
        pytest.skip("the statements of ddl_hard")
    schema = Schema.open(recording.history(), position_ts=recording.begin_ts, policy=EVERYTHING)
    found = {s.job.id: s.sql for s in walk(recording.batch(), schema) if isinstance(s, Ddl)}
    expected = {
        102: "RENAME TABLE `dh1`.`ra` TO `dh1`.`ra2`, `dh1`.`rb` TO `dh2`.`rb2`",
        103: "RENAME TABLE `dh1`.`ra2` TO `dh1`.`tmp`, `dh1`.`rc` TO `dh1`.`ra2`, `dh1`.`tmp` TO `dh1`.`rc`",
        104: "RENAME TABLE `dh2`.`rb2` TO `dh2`.`q1`, `dh1`.`rc` TO `dh2`.`q2`",
        107: "RENAME TABLE `dh1`.`rq` TO `dh2`.`rq2`",
        114: "ALTER TABLE `dh1`.`xp` EXCHANGE PARTITION `p0` WITH TABLE `dh1`.`xn` WITHOUT VALIDATION",
        117: "ALTER TABLE `dh1`.`xp` EXCHANGE PARTITION `p1` WITH TABLE `dh2`.`xn2` WITHOUT VALIDATION",
        156: "DROP TABLE IF EXISTS `dh1`.`m1`",
        157: "DROP TABLE IF EXISTS `dh1`.`m2`",
        158: "DROP VIEW IF EXISTS `dh1`.`v1`",
        159: "DROP VIEW IF EXISTS `dh1`.`v2`",
    }
    assert {job_id: found[job_id] for job_id in expected} == {job_id: (sql,) for job_id, sql in expected.items()}
