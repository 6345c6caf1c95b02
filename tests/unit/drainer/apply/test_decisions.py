"""Decisions of an operator: a DDL or a transaction that the destination refuses, and transactions that are skipped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut, NotDistributed
from drainer.apply.progress import Decisions, Refused, Stopped
from drainer.pipeline import Pipeline
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy, RewriteRules
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl
from drainer.sink.base import Identity
from drainer.sink.errors import DataError, DdlFailed
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.local_batch import LocalBatch
from tests.support.memory_sink import MemorySink, Store
from tests.support.row_case import INT, table, transaction
from tests.support.schema_case import BEGIN_TS, ddl, ts
from tests.unit.drainer.cut_case import SECONDARY, SQLiteDistributed, Stream, opened, put, stream_of
from tests.unit.drainer.test_pipeline import StubProvider

REFUSED_TS = ts(11)  # inserts the unique value of the row before it
STREAM = stream_of([SECONDARY], [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1), put(SECONDARY, 3, 3)], upserts=False)
UNTIL = ts(900)


@dataclass
class Life:
    """A pipeline into a file, behind the DDL that makes the table."""

    sink: SQLiteSink
    pipeline: Pipeline
    stream: Stream
    mode: Mode = Mode.DRIVER

    @property
    def decisions(self) -> Decisions:
        return self.pipeline.decisions

    @property
    def plan(self) -> PlannedBatch:
        return PlannedBatch(self.pipeline.position_ts, UNTIL, self.mode, (), 1)

    def run(self) -> None:
        self.pipeline.run(self.plan, LocalBatch([self.stream.binlogs], self.pipeline.position_ts, UNTIL))

    def keys(self) -> list[int]:
        with self.sink._opened().transaction() as connection:
            return [key for (key,) in connection.execute(f'SELECT k FROM "d.{SECONDARY.name}" ORDER BY k')]


def life(tmp_path: Path, *, waits: bool = True, mode: Mode = Mode.DRIVER) -> Life:
    sink = SQLiteDistributed(tmp_path / "down.sqlite")
    decisions = Decisions(waits=waits, record=tmp_path / "skipped.jsonl")
    return Life(sink, opened(sink, STREAM, decisions), STREAM, mode)


def deciding(run: Callable[[], None], decisions: Decisions, decide: Callable[[Refused], None]) -> None:
    """Run, and call `decide` with what the destination refuses."""
    errors: list[BaseException] = []

    def body() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  it is raised in the test's thread
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    end = time.monotonic() + 60
    while decisions.refused is None and thread.is_alive() and time.monotonic() < end:
        thread.join(0.01)
    assert decisions.refused is not None, errors
    decide(decisions.refused)
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]


def test_refused_transaction_is_skipped_on_request_and_recorded(tmp_path: Path) -> None:
    made = life(tmp_path)

    def skip(refused: Refused) -> None:
        assert (refused.job_id, refused.commit_ts) == (0, REFUSED_TS)
        assert f"a decision about the transaction of commit_ts {REFUSED_TS}" in made.pipeline.progress.waiting_for
        assert made.pipeline.position_ts == REFUSED_TS - (1 << 18), "everything before it is applied"
        made.decisions.skip(REFUSED_TS, "10.0.0.7")
        made.decisions.decide(None)

    deciding(made.run, made.decisions, skip)
    assert made.keys() == [1, 3] and made.pipeline.position_ts == UNTIL
    assert made.pipeline.progress.waiting_for == "" and not made.decisions.skips
    found = lines(tmp_path)
    assert [line["state"] for line in found] == ["skipping", "skipped"]
    for line in found:
        assert (line["commit_ts"], line["who"]) == (REFUSED_TS, "10.0.0.7")
        assert line["tables"] == {f"d.{SECONDARY.name}": {"insert": 1}} and line["time"]


def test_refused_transaction_is_applied_after_the_cause_is_removed(tmp_path: Path) -> None:
    made = life(tmp_path)

    def mend(_: Refused) -> None:
        with made.sink._opened().transaction() as connection:
            connection.execute(f'DELETE FROM "d.{SECONDARY.name}" WHERE k = 1')
        made.decisions.decide(None)

    deciding(made.run, made.decisions, mend)
    assert made.keys() == [2, 3] and not (tmp_path / "skipped.jsonl").exists()


def test_refusal_is_raised_if_the_drainer_is_not_to_wait(tmp_path: Path) -> None:
    made = life(tmp_path, waits=False)
    with pytest.raises(DataError, match=f"commit_ts {REFUSED_TS}"):
        made.run()
    assert made.keys() == [1]


def test_stop_ends_the_wait_and_leaves_the_position_before_the_transaction(tmp_path: Path) -> None:
    made = life(tmp_path)
    with pytest.raises(Stopped, match="waiting for a decision"):
        deciding(made.run, made.decisions, lambda _: made.pipeline.stop())
    assert made.keys() == [1] and made.pipeline.position_ts < REFUSED_TS


@pytest.mark.parametrize("mode", [Mode.DRIVER, Mode.DISTRIBUTED])
def test_transaction_is_skipped_before_its_batch_begins(tmp_path: Path, mode: Mode) -> None:
    """A batch that holds it is not distributed."""
    made = life(tmp_path, waits=False, mode=mode)
    made.decisions.skip(REFUSED_TS, "me")
    assert made.pipeline.fold_order(made.plan) is None
    made.run()
    assert made.keys() == [1, 3] and made.pipeline.progress.batches["distributed"] == 0


def test_batch_that_was_read_folded_before_the_request_is_planned_again(tmp_path: Path) -> None:
    made = life(tmp_path, mode=Mode.DISTRIBUTED)
    plan = replace(made.plan, fold=made.pipeline.fold_order(made.plan))
    assert plan.fold is not None
    made.decisions.skip(REFUSED_TS, "me")
    with pytest.raises(NotDistributed, match="to be skipped"):
        made.pipeline.run(plan, LocalBatch([STREAM.binlogs], plan.after_ts, UNTIL))
    assert made.pipeline.open_intent is None and made.keys() == []


def test_request_for_a_transaction_that_is_not_met_is_reported(tmp_path: Path) -> None:
    made = life(tmp_path)
    made.decisions.skip(ts(500), "me")
    with structlog.testing.capture_logs() as logged:
        made.pipeline.advance(UNTIL)
    (line,) = [line for line in logged if line["event"] == "a transaction was not skipped"]
    assert (line["commit_ts"], line["who"]) == (ts(500), "me") and not made.decisions.skips
    assert not (tmp_path / "skipped.jsonl").exists()


T = table([("id", INT)], handle="id")
WIDER = table([("id", INT), ("v", INT)], handle="id")


class Refusing(MemorySink):
    """Refuses the DDL of job 3, unless another text is to run, or it `works`."""

    works = False

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        if step.job.id == 3 and not self.works and step.sql != ("OK",):
            raise DdlFailed("refused", job_id=3, commit_ts=step.commit_ts)
        super().ddl(step, may_exist=may_exist)


def altering(sink: MemorySink) -> tuple[Pipeline, Decisions, PlannedBatch, LocalBatch]:
    """A batch with three DDLs, the last of which adds a column, and a row behind them."""
    create, alter = ActionType.CREATE_TABLE, ActionType.ADD_COLUMN
    jobs = [
        Job(id=1, type=ActionType.CREATE_SCHEMA, schema_version=1, schema_id=2, db_info=DBInfo(2, "d")),
        Job(id=2, type=create, schema_version=2, schema_id=2, table_id=T.id, table_info=T),
        Job(id=3, type=alter, schema_version=3, schema_id=2, table_id=T.id, table_info=WIDER),
    ]
    payloads = [
        ddl(ts(1), 1, "CREATE DATABASE d").payload,
        ddl(ts(2), 2, "CREATE TABLE d.t (id INT PRIMARY KEY)").payload,
        ddl(ts(3), 3, "ALTER TABLE d.t ADD COLUMN v INT").payload,
        transaction([(WIDER, ("insert", {}, {1: 1, 2: 1}))], commit_ts=ts(4), version=3),
    ]
    position = sink.open(Identity(1, "default", "n"), BEGIN_TS)
    policy = Policy(rewrite=RewriteRules())
    schema = Schema.open(JobHistory(jobs), position_ts=position.commit_ts, job_done=sink.job_done, policy=policy)
    decisions = Decisions(waits=True)
    cut = Cut(4, 100, "d")
    pipeline = Pipeline(sink, StubProvider(schema), cut, position_ts=position.commit_ts, decisions=decisions)
    plan = PlannedBatch(pipeline.position_ts, UNTIL, Mode.DRIVER, (), 1)
    return pipeline, decisions, plan, LocalBatch([payloads], BEGIN_TS, UNTIL)


@pytest.mark.parametrize(
    ("decision", "works", "runs"),
    [(None, True, True), ((), False, False), (("OK",), False, True)],
    ids=["run again", "skip", "other text"],
)
def test_refused_ddl_is_run_again_skipped_or_replaced(
    decision: tuple[str, ...] | None, works: bool, runs: bool
) -> None:
    store = Store()
    sink = Refusing(store)
    pipeline, decisions, plan, batch = altering(sink)

    def decide(refused: Refused) -> None:
        assert refused.job_id == 3 and "binlogctl decide-ddl -job-id 3" in pipeline.progress.waiting_for
        sink.works = works
        decisions.decide(decision)

    deciding(lambda: pipeline.run(plan, batch), decisions, decide)
    assert (("ddl", 3, ts(3)) in store.log) is runs
    assert pipeline.position_ts == UNTIL and len(store.rows["d", "t"]) == 1


class FailingBeside(MemorySink):
    """Its job 2 fails beside the stream: the error comes with a later operation."""

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        if step.job.id == 3:
            raise DdlFailed("beside the stream", job_id=2, commit_ts=ts(2))
        super().ddl(step, may_exist=may_exist)


def test_failure_of_a_ddl_beside_the_stream_ends_the_drainer() -> None:
    """No decision could help: its step has been taken."""
    pipeline, _, plan, batch = altering(FailingBeside(Store()))
    with pytest.raises(DdlFailed, match="beside the stream"):
        pipeline.run(plan, batch)
    assert pipeline.decisions.refused is None
