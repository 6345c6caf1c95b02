"""Rule 12 through the pipeline: upstream stops checking a unique key before its drop's binlog comes."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from binlog import envelope
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, TableInfo
from binlog.tidb.types import SchemaState

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut, NotDistributed
from drainer.pipeline import Pipeline
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.schema.state import Schema, dropped_keys
from drainer.sink.base import Identity
from drainer.sink.errors import UniqueConflict
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.live_provider import LiveProvider
from tests.support.local_batch import LocalBatch
from tests.support.row_case import INT, TEXT, Step, not_null, table, transaction
from tests.support.schema_case import BEGIN_TS, ddl, ts
from tests.unit.drainer.cut_case import SQLiteDistributed
from tests.unit.drainer.schema.test_provider import StubSource
from tests.unit.drainer.test_pipeline import StubProvider

COLUMNS = [("id", INT), ("u", INT)]
WITH = table(COLUMNS, unique={"uu": ["u"]}, handle="id")
WITHOUT = table(COLUMNS, handle="id")
KEYED = table([("id", not_null(INT)), ("u", INT)], unique={"PRIMARY": ["id"]})
BARE = table([("id", not_null(INT)), ("u", INT)])
UNTIL = ts(900)
DROP_START = ts(5)


def jobs(before: TableInfo, after: TableInfo, drop: ActionType) -> list[Job]:
    """A table, and the drop of its key: versions 3 to 5 are those in which upstream has the key no more."""
    schema = Job(id=1, type=ActionType.CREATE_SCHEMA, schema_version=1, schema_id=2, db_info=DBInfo(2, "d"))
    create = Job(
        id=2, type=ActionType.CREATE_TABLE, schema_version=2, schema_id=2, table_id=before.id, table_info=before
    )
    gone = Job(id=3, type=drop, schema_version=5, schema_id=2, table_id=after.id, table_info=after, start_ts=DROP_START)
    return [schema, create, gone]


def row(info: TableInfo, commit_ts: int, version: int, *values: int) -> bytes:
    step: Step = ("insert", {}, dict(enumerate(values, start=1)))
    return transaction([(info, step)], commit_ts=commit_ts, version=version)


def binlogs(before: TableInfo, after: TableInfo, twice: tuple[tuple[int, int], ...]) -> list[bytes]:
    (first, *more) = twice
    return [
        ddl(ts(1), 1, "CREATE DATABASE d").payload,
        ddl(ts(2), 2, "CREATE TABLE d.t (…)").payload,
        row(before, ts(3), 2, *first),
        *(row(before, ts(10 + n), 4, *values) for n, values in enumerate(more)),
        ddl(ts(20), 3, "ALTER TABLE d.t DROP INDEX uu").payload,
        row(after, ts(30), 5, 9, 9),
    ]


def drain(
    path: Path,
    known: list[Job],
    late: list[Job],
    payloads: list[bytes],
    cuts: list[int],
    port: StubSource | None = None,
) -> Pipeline:
    """`port`: a status port gives the jobs, instead of `known` and then `late`."""
    destination = SQLiteSink(path)
    position = destination.open(Identity(1, "default", "n"), BEGIN_TS)
    provider: StubProvider | LiveProvider
    if port is None:
        schema = Schema.open(JobHistory(known), position_ts=position.commit_ts, job_done=destination.job_done)
        provider = StubProvider(schema, [list(late)] if late else [])
    else:
        asking = SchemaProvider([port], Policy())
        asyncio.run(asking.open(position_ts=position.commit_ts, job_done=destination.job_done))
        provider = LiveProvider(asking)
    pipeline = Pipeline(destination, provider, Cut(4, 100, "d"), position_ts=position.commit_ts)
    try:
        for until_ts in cuts:
            feed = LocalBatch([payloads], pipeline.position_ts, until_ts)
            pipeline.run(PlannedBatch(pipeline.position_ts, until_ts, Mode.DRIVER, (), 1), feed)
    finally:
        destination.close(clean=False)
    return pipeline


def rows_of(path: Path, columns: str = "id, u") -> list[tuple[int, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(f'SELECT {columns} FROM "d.t" ORDER BY {columns}').fetchall()


ALONE = table([("id", INT)], handle="id")
FOLDS_BY_U = table([("id", INT), ("u", not_null(INT))], unique={"uu": ["u"]})
TWICE = ((1, 5), (2, 5), (3, 5))
CASES = [
    pytest.param(WITH, WITHOUT, ActionType.DROP_INDEX, TWICE, id="secondary"),
    pytest.param(KEYED, BARE, ActionType.DROP_PRIMARY_KEY, ((9, 0), (1, 5), (1, 6)), id="fold key"),
    pytest.param(WITH, ALONE, ActionType.DROP_COLUMN, TWICE, id="secondary's column"),
    pytest.param(FOLDS_BY_U, table([("id", INT)]), ActionType.DROP_COLUMN, TWICE, id="fold key's column"),
]


@pytest.mark.parametrize("cuts", [[UNTIL], [ts(4), ts(10), ts(15), UNTIL]])
@pytest.mark.parametrize(("before", "after", "drop", "twice"), CASES)
def test_drop_of_key_runs_before_rows_it_refuses(
    tmp_path: Path,
    before: TableInfo,
    after: TableInfo,
    drop: ActionType,
    twice: tuple[tuple[int, int], ...],
    cuts: list[int],
) -> None:
    """Rule 12: two live rows hold one value before the drop's binlog, also in a column that goes; both arrive, and the
    drop runs once."""
    path = tmp_path / "down.sqlite"
    pipeline = drain(path, jobs(before, after, drop), [], binlogs(before, after, twice), cuts)
    width = len(after.columns)
    assert rows_of(path, ", ".join(["id", "u"][:width])) == sorted(values[:width] for values in [*twice, (9, 9)])
    assert pipeline.progress.ddls == 3 and pipeline.driver_from is None


RETYPED = replace(WITHOUT, columns=(WITHOUT.columns[0], replace(WITHOUT.columns[1], id=3, type=TEXT)))


@pytest.mark.parametrize("cuts", [[UNTIL], [ts(4), ts(10), ts(15), UNTIL]])
def test_multi_schema_change_moves_as_a_whole(tmp_path: Path, cuts: list[int]) -> None:
    """Rule 12: it drops the key and changes the column's type; the rows that it moved before are cast."""
    path = tmp_path / "down.sqlite"
    known = jobs(WITH, RETYPED, ActionType.MULTI_SCHEMA_CHANGE)
    drain(path, known, [], binlogs(WITH, RETYPED, ((1, 5), (2, 5)))[:-1], cuts)
    found: list[tuple[object, ...]] = list(rows_of(path))
    assert found == [(1, "5"), (2, "5")]


def test_renamed_or_rebuilt_key_is_not_dropped_key() -> None:
    renamed = replace(WITH, indexes=(replace(WITH.indexes[0], name="other"),))
    assert not dropped_keys(WITH, renamed) and not dropped_keys(
        WITH, replace(WITH, indexes=(replace(WITH.indexes[0], id=7),))
    )
    assert dropped_keys(WITH, WITHOUT) == {"uu"}


DROPPING = replace(KEYED, indexes=(replace(KEYED.indexes[0], state=SchemaState.DELETE_ONLY),))
SECONDARY_GOING = replace(WITH, indexes=(replace(WITH.indexes[0], state=SchemaState.DELETE_ONLY),))


@pytest.mark.parametrize("cuts", [[UNTIL], [ts(4), ts(10), ts(15), UNTIL]])
@pytest.mark.parametrize(
    ("before", "running", "after", "drop", "twice"),
    [
        (WITH, SECONDARY_GOING, WITHOUT, ActionType.DROP_INDEX, TWICE),
        (KEYED, DROPPING, BARE, ActionType.DROP_PRIMARY_KEY, ((9, 0), (1, 5), (1, 6))),
        (KEYED, DROPPING, BARE, ActionType.DROP_PRIMARY_KEY, ((1, 0), (1, 5), (1, 6))),
    ],
)
def test_rows_wait_for_key_drop_that_no_source_shows_yet(
    tmp_path: Path,
    before: TableInfo,
    running: TableInfo,
    after: TableInfo,
    drop: ActionType,
    twice: tuple[tuple[int, int], ...],
    cuts: list[int],
) -> None:
    """Rule 12 where a status port is the only source: rows newer than every known job wait for the one that runs on
    their table; nothing is evicted, and the drainer does not stop."""
    path = tmp_path / "down.sqlite"
    known = jobs(before, after, drop)
    port = StubSource(known[:2], [], [], known[2:], complete=False)
    port.shown = running
    pipeline = drain(path, [], [], binlogs(before, after, twice), cuts, port)
    assert rows_of(path) == sorted([*twice, (9, 9)])
    assert pipeline.progress.ddls == 3


def test_history_is_read_again_when_rows_are_refused(tmp_path: Path) -> None:
    """Rule 12: the history is read again before giving up."""
    path = tmp_path / "down.sqlite"
    known = jobs(WITH, WITHOUT, ActionType.DROP_INDEX)
    payloads = binlogs(WITH, WITHOUT, ((1, 5), (2, 5)))
    assert drain(path, known[:2], known[2:], payloads, [ts(15), UNTIL]).progress.ddls == 3
    assert rows_of(path) == [(1, 5), (2, 5), (9, 9)]


def test_conflict_on_key_that_no_job_drops_is_fatal(tmp_path: Path) -> None:
    """Rule 12: nothing is evicted and nothing moves."""
    path = tmp_path / "down.sqlite"
    payloads = binlogs(WITH, WITHOUT, ((1, 5), (2, 5)))
    with pytest.raises(UniqueConflict, match="'uu'"):
        drain(path, jobs(WITH, WITHOUT, ActionType.DROP_INDEX)[:2], [], payloads, [ts(4), ts(15)])
    assert rows_of(path) == [(1, 5)]


def test_schema_is_unenforced_from_start_of_key_drop(tmp_path: Path) -> None:
    """Rule 12: from the start of the job that drops a key, or a partition whose rows hold values of a key; not of one
    that adds a column or drops a plain index."""
    found = Schema.open(JobHistory(jobs(WITH, WITHOUT, ActionType.DROP_INDEX)), position_ts=ts(2), schema_version=2)
    assert found.unenforced_from == DROP_START
    for before, kind, after, expected in (
        (WITH, ActionType.ADD_COLUMN, WITHOUT, None),
        (WITH, ActionType.DROP_INDEX, WITH, None),
        (WITH, ActionType.DROP_TABLE_PARTITION, WITH, DROP_START),
        (WITHOUT, ActionType.DROP_TABLE_PARTITION, WITHOUT, None),
        (KEYED, ActionType.DROP_TABLE_PARTITION, KEYED, None),
    ):
        other = Schema.open(JobHistory(jobs(before, after, kind)), position_ts=ts(2), schema_version=2)
        assert other.unenforced_from == expected


@pytest.mark.parametrize("folded", [False, True])
def test_a_drop_that_becomes_known_after_planning_keeps_its_batch_from_being_spread(
    tmp_path: Path, folded: bool
) -> None:
    """Rule 12: an open batch could not run the job early, and would not be finished."""
    path = tmp_path / "down.sqlite"
    *known, drop = jobs(WITH, WITHOUT, ActionType.DROP_INDEX)
    payloads = binlogs(WITH, WITHOUT, ((1, 5), (2, 5)))
    destination = SQLiteDistributed(path)
    position = destination.open(Identity(1, "default", "n"), BEGIN_TS)
    provider = StubProvider(
        Schema.open(JobHistory(known), position_ts=position.commit_ts, job_done=destination.job_done)
    )
    pipeline = Pipeline(destination, provider, Cut(4, 100, "d"), position_ts=position.commit_ts)
    first, second = (LocalBatch([payloads], after, until) for after, until in ((BEGIN_TS, ts(4)), (ts(4), ts(15))))
    pipeline.run(PlannedBatch(BEGIN_TS, ts(4), Mode.DRIVER, (), 1), first)
    plan = PlannedBatch(ts(4), ts(15), Mode.DISTRIBUTED, (), 1)
    plan = replace(plan, fold=pipeline.fold_order(plan)) if folded else plan
    provider.schema.learn([drop])
    if folded:
        with pytest.raises(NotDistributed, match="a DDL is dropping a key"):
            pipeline.run(plan, second)
        assert (pipeline.position_ts, pipeline.driver_from) == (ts(4), DROP_START)
        plan = replace(plan, mode=Mode.DRIVER, fold=None)
    pipeline.run(plan, second)
    destination.close(clean=False)
    assert (rows_of(path), destination.begun) == ([(1, 5), (2, 5)], [])


def test_test_binlogs_have_expected_schema_versions() -> None:
    found = [envelope.scan(payload) for payload in binlogs(WITH, WITHOUT, ((1, 5), (2, 5)))]
    assert [e.schema_version for e in found if not e.ddl_job_id] == [2, 4, 5]
