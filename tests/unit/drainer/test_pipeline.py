"""A recording through the pipeline into memory: in the driver and distributed batches, any cut, come out alike."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from binlog import envelope
from binlog.errors import BinlogError
from binlog.tidb.job import ActionType
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import SLOTS_MAX, BatchRefused, Cut, NotDistributed
from drainer.apply.progress import Stopped
from drainer.batch.served import Batch
from drainer.changes.slot_blob import HASH_VERSION
from drainer.pipeline import Pipeline
from drainer.schema.errors import JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.state import Schema
from drainer.sink.base import Identity, Intent
from drainer.sink.retry import TRIES_REPORTED, Failures
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.examples import FEW
from tests.support.local_batch import LocalBatch
from tests.support.memory_sink import MemorySink, Store
from tests.support.schema_case import BEGIN_TS, ddl, job, table, ts

CAPTURE = CaptureSet(GOLDEN / "keys")
BEGIN, END = CAPTURE.meta["scenario_start_ts"], CAPTURE.meta["scenario_end_ts"]
JOBS = parse_jobs(CAPTURE.jobs_text.decode(), "recording")
BINLOGS = [p for p in CAPTURE.binlogs if BEGIN < envelope.scan(p).commit_ts <= END]
COMMITS = sorted({envelope.scan(p).commit_ts for p in BINLOGS})
CUT = Cut(slots=4, chunk_rows=100, digest="d")
WHO = Identity(1, "default", "n")


class StubProvider:
    """A schema that knows everything, or learns what `late` gives when it is asked."""

    def __init__(self, schema: Schema, late: list[list[object]] | None = None) -> None:
        self.schema = schema
        self.complete = True
        self.asked: list[BinlogError] = []
        self._late = late or []

    def prepare(self, batch: Batch) -> None:
        self.schema.settle(batch.greatest_version)

    def missing(self, error: JobUnknown) -> bool:
        self.asked.append(error)
        jobs = self._late.pop(0) if self._late else []
        self.schema.learn(jobs)  # type: ignore[arg-type]
        return bool(jobs)

    def resolve_column(self, error: UnknownColumn) -> bool:
        raise AssertionError(error)

    def verify(self, error: TableUnverified) -> bool:
        for table_id in error.table_ids:
            self.schema.verify(table_id, error.schema_version)
        return True


@dataclass
class Run:
    """One life of the pipeline on a store."""

    store: Store
    pipeline: Pipeline
    destination: MemorySink
    provider: StubProvider


def start(store: Store, schema: Schema | None = None, late: list[list[object]] | None = None, at: int = BEGIN) -> Run:
    destination = MemorySink(store)
    position = destination.open(WHO, at)
    schema = schema or Schema.open(
        JobHistory(JOBS), position_ts=position.commit_ts, job_done=None if position.fresh else destination.job_done
    )
    provider = StubProvider(schema, late)
    return Run(store, Pipeline(destination, provider, CUT, position_ts=position.commit_ts), destination, provider)


def plan(after_ts: int, until_ts: int, mode: Mode = Mode.DRIVER, intent: Intent | None = None) -> PlannedBatch:
    return PlannedBatch(after_ts, until_ts, mode, (), 1, intent)


def feed(after_ts: int, until_ts: int, parts: int = 2) -> LocalBatch:
    return LocalBatch([BINLOGS[n::parts] for n in range(parts)], after_ts, until_ts)


def whole() -> Store:
    store = Store()
    start(store).pipeline.run(plan(BEGIN, END), feed(BEGIN, END))
    return store


WHOLE = whole()


def has_ddl(after_ts: int, until_ts: int) -> bool:
    return any(envelope.scan(p).ddl_job_id for p in BINLOGS if after_ts < envelope.scan(p).commit_ts <= until_ts)


def test_whole_recording_runs_as_one_batch_in_driver() -> None:
    assert WHOLE.commit_ts == END
    assert sum(len(rows) for rows in WHOLE.rows.values()) > 100
    assert WHOLE.jobs


@FEW
@given(st.sets(st.sampled_from(COMMITS), max_size=8), st.integers(1, 3), st.booleans())
def test_any_batch_cut_distributed_or_in_driver_gives_equal_rows(cuts: set[int], parts: int, restart: bool) -> None:
    """Batches end anywhere; those without a DDL are distributed; the driver may be another life for each."""
    store = Store()
    run = start(store)
    edges = sorted({BEGIN, END, *cuts})
    for after_ts, until_ts in itertools.pairwise(edges):
        if restart:
            run = start(store)
        version = run.pipeline.schema_version
        newest = max(
            (e.schema_version for e in map(envelope.scan, BINLOGS) if after_ts < e.commit_ts <= until_ts), default=0
        )
        distributed = not has_ddl(after_ts, until_ts) and newest <= version
        mode = Mode.DISTRIBUTED if distributed else Mode.DRIVER
        run.pipeline.run(plan(after_ts, until_ts, mode), feed(after_ts, until_ts, parts))
        assert run.pipeline.position_ts == until_ts
    assert (store.rows, store.commit_ts, store.jobs) == (WHOLE.rows, WHOLE.commit_ts, WHOLE.jobs)
    assert {k: sorted(v, key=repr) for k, v in store.bags.items() if v} == {
        k: sorted(v, key=repr) for k, v in WHOLE.bags.items() if v
    }


@FEW
@given(st.sets(st.sampled_from(COMMITS), min_size=1, max_size=8), st.integers(1, 3))
def test_batches_read_ahead_give_equal_rows(cuts: set[int], parts: int) -> None:
    """Each distributed batch is planned and read before the one in front of it is applied, where that is distributed
    too."""
    store = Store()
    run = start(store)
    edges = sorted({BEGIN, END, *cuts})
    ranges = list(itertools.pairwise(edges))

    def planned(after_ts: int, until_ts: int) -> tuple[PlannedBatch, LocalBatch]:
        newest = max(
            (e.schema_version for e in map(envelope.scan, BINLOGS) if after_ts < e.commit_ts <= until_ts), default=0
        )
        distributed = not has_ddl(after_ts, until_ts) and newest <= run.pipeline.schema_version
        found = plan(after_ts, until_ts, Mode.DISTRIBUTED if distributed else Mode.DRIVER)
        return replace(found, fold=run.pipeline.fold_order(found)), feed(after_ts, until_ts, parts)

    ahead: tuple[PlannedBatch, LocalBatch] | None = None
    for number, (after_ts, until_ts) in enumerate(ranges):
        now, reading = ahead or planned(after_ts, until_ts)
        if ahead is None:
            run.pipeline.read(now, reading)
        ahead = None
        if now.fold is not None and number + 1 < len(ranges):
            following = planned(*ranges[number + 1])
            if following[0].fold is not None:
                run.pipeline.read(*following)
                ahead = following
        assert store.commit_ts == after_ts
        try:
            run.pipeline.run(now, reading)
        except NotDistributed:
            ahead = None
            run.pipeline.run(plan(after_ts, until_ts), feed(after_ts, until_ts, parts))
    assert (store.rows, store.commit_ts, store.jobs) == (WHOLE.rows, WHOLE.commit_ts, WHOLE.jobs)


def test_batch_read_ahead_is_refused_when_not_at_position() -> None:
    run, middle = start(Store()), COMMITS[-3]
    second = plan(middle, END, Mode.DISTRIBUTED)
    second = replace(second, fold=run.pipeline.fold_order(second))
    with pytest.raises(BatchRefused, match="does not begin"):
        run.pipeline.run(second, feed(middle, END))
    assert (run.store.log, run.store.intent) == ([], None)


def test_batch_waiting_for_quiet_pipeline_stops_with_it() -> None:
    """Who holds it quiet stops the query, which ends only when its batch has."""
    pipeline = start(Store()).pipeline
    with ThreadPoolExecutor(1) as pool, pipeline.quiet():
        waiting = pool.submit(pipeline.run, plan(BEGIN, END), feed(BEGIN, END))
        pipeline.stop()
        with pytest.raises(Stopped):
            waiting.result(60)


def test_position_never_decreases() -> None:
    run = start(Store())
    run.pipeline.advance(BEGIN + 5)
    run.pipeline.advance(BEGIN + 2)
    assert run.pipeline.position_ts == run.store.commit_ts == BEGIN + 5


def test_cancelled_read_ahead_keeps_reported_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch before it failed, and Spark cancels what it was reading: the status page goes on to tell the reason."""
    shown = Failures()
    monkeypatch.setattr("drainer.pipeline.FAILURES", shown)
    run = start(Store())
    shown.failed("batch", BinlogError("the destination refuses a row"), tries=TRIES_REPORTED)
    second = plan(BEGIN, COMMITS[0], Mode.DISTRIBUTED)
    second = replace(second, fold=run.pipeline.fold_order(second))

    class Cancelled(LocalBatch):
        def read(self, order: object, *, folded: bool) -> None:
            raise BinlogError("the job was cancelled")

    with pytest.raises(BinlogError) as found:
        run.pipeline.read(second, Cancelled([], BEGIN, COMMITS[0]))
    assert shown.now is not None and shown.now.error == "the destination refuses a row"
    run.pipeline.read_failed(found.value)
    assert shown.now is not None and shown.now.error == "the job was cancelled"
    run.pipeline.read_failed(Stopped("stopped"))
    assert shown.now is not None and shown.now.error == "the job was cancelled"


def test_batch_not_beginning_at_position_is_refused() -> None:
    """The destination's position wins (rule 17)."""
    run = start(Store())
    with pytest.raises(BatchRefused, match="does not begin"):
        run.pipeline.run(plan(BEGIN + 1, END), feed(BEGIN, END))
    assert run.store.log == []


def test_unfinished_batch_continues_with_its_recorded_intent() -> None:
    """Rule 16: the recorded intent decides, not today's configuration."""
    store = Store()
    first = start(store)
    first.pipeline.run(plan(BEGIN, COMMITS[-3]), feed(BEGIN, COMMITS[-3]))
    intent = Intent(COMMITS[-3], END, 2, 7, HASH_VERSION, "d")
    first.destination.begin(intent)
    second = start(store)
    reading = feed(COMMITS[-3], END)
    second.pipeline.run(plan(COMMITS[-3], END, Mode.DISTRIBUTED, intent), reading)
    assert [distributed.intent for distributed in reading.distributed_jobs] == [intent]
    assert (store.intent, store.rows) == (None, WHOLE.rows)


@pytest.mark.parametrize(
    ("version", "digest"), [(HASH_VERSION, "other filters"), (HASH_VERSION - 1, "d"), (HASH_VERSION + 1, "d")]
)
def test_unfinished_batch_of_another_digest_or_version_is_refused(version: int, digest: str) -> None:
    """Its rows are in other slots, or are other rows: some would be lost."""
    store = Store()
    run = start(store)
    intent = Intent(BEGIN, END, 2, 7, version, digest)
    with pytest.raises(BatchRefused, match="other filters, another consistency or by another version"):
        run.pipeline.run(plan(BEGIN, END, Mode.DISTRIBUTED, intent), feed(BEGIN, END))


# --- a job that is not known yet ------------------------------------------------------------------------------------

DONE = [
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d"), finished_ts=1),
    job(2, ActionType.CREATE_TABLE, 2, schema_id=2, table_id=10, table_info=table(10, "t", ["a"]), finished_ts=1),
]
LATE = job(9, ActionType.ADD_COLUMN, 9, schema_id=2, table_id=10, table_info=table(10, "t", ["a", "b"]))
UNTIL = ts(900_000)


def with_late_job(late: list[list[object]]) -> tuple[Run, LocalBatch]:
    binlog = ddl(ts(2), 9, "ALTER TABLE t ADD COLUMN b INT;")
    schema = Schema.open(JobHistory(DONE), position_ts=BEGIN_TS)
    return start(Store(), schema, late, at=BEGIN_TS), LocalBatch([[binlog.payload]], BEGIN_TS, UNTIL)


def test_batch_waits_for_missing_ddl_job_and_continues() -> None:
    run, reading = with_late_job([[], [LATE]])
    run.pipeline.run(plan(BEGIN_TS, UNTIL), reading)
    assert run.store.jobs == {9} and run.pipeline.position_ts == UNTIL
    assert len(run.provider.asked) == 2
    assert run.pipeline.progress.waiting_for == ""


def test_batch_waiting_for_ddl_job_stops_with_pipeline() -> None:
    run, reading = with_late_job([])
    run.provider.missing = lambda error: (run.pipeline.stop(), False)[1]  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(Stopped, match="DDL job 9"):
        run.pipeline.run(plan(BEGIN_TS, UNTIL), reading)
    assert "DDL job 9" in run.pipeline.progress.waiting_for
    with pytest.raises(Stopped, match="before the batch began"):
        run.pipeline.run(plan(BEGIN_TS, UNTIL), reading)
    assert run.store.commit_ts == BEGIN_TS


def test_batch_keeps_its_planned_slots_when_executors_change() -> None:
    """Tasks fold into the slots of the plan; another number in the intent would leave slots unread (rule 22)."""
    run, after_ts = start(Store()), COMMITS[-3]
    run.pipeline.run(plan(BEGIN, after_ts), feed(BEGIN, after_ts))
    automatic = Pipeline(run.destination, run.provider, Cut(0, 100, "d"), position_ts=after_ts)
    automatic.use_parallelism(2)
    planned = plan(after_ts, END, Mode.DISTRIBUTED)
    planned = replace(planned, fold=automatic.fold_order(planned))
    automatic.use_parallelism(8)
    reading = feed(after_ts, END)
    automatic.run(planned, reading)
    assert [(job.order.slots, job.intent.slots) for job in reading.distributed_jobs] == [(4, 4)]
    assert run.store.rows == WHOLE.rows


def test_number_of_slots_follows_executors_up_to_maximum() -> None:
    found = start(Store())
    automatic = Pipeline(found.destination, found.provider, Cut(0, 100, "d"), position_ts=BEGIN)
    fixed = Pipeline(found.destination, found.provider, Cut(5, 100, "d"), position_ts=BEGIN)
    for tasks, slots in ((1, 2), (7, 14), (400, SLOTS_MAX), (3, 6)):
        for one, wanted in ((automatic, slots), (fixed, 5)):
            one.use_parallelism(tasks)
            order = one.fold_order(plan(BEGIN, BEGIN + 1, Mode.DISTRIBUTED))
            assert order is not None and order.slots == wanted
