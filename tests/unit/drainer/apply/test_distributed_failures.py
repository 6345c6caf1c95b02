"""A distributed batch with what is not as it should be: keys twice, columns that nobody knows any more, slots that give
up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import TableInfo
from structlog.testing import capture_logs

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut, NotDistributed
from drainer.apply.fold_order import DistributedJob
from drainer.apply.progress import Stopped
from drainer.changes.slot_blob import HASH_VERSION
from drainer.pipeline import Pipeline
from drainer.schema.errors import UnknownColumn
from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from drainer.sink import retry
from drainer.sink.base import Identity, Intent, Receipt
from drainer.sink.errors import DestinationDown
from drainer.sink.retry import Failure, Failures
from tests.support.local_batch import LocalBatch
from tests.support.memory_sink import MemorySink, Store
from tests.support.row_case import INT, Step, table, transaction
from tests.support.schema_case import BEGIN_TS, job, ts
from tests.unit.drainer.test_pipeline import StubProvider

T = table([("id", INT), ("v", INT)], handle="id")
MORE = table([("id", INT), ("v", INT), ("w", INT)], handle="id")
UNTIL = ts(900)
PLAN = PlannedBatch(BEGIN_TS, UNTIL, Mode.DISTRIBUTED, (), 1)
INTENT = Intent(BEGIN_TS, UNTIL, 4, 100, HASH_VERSION, "d")


@dataclass
class Life:
    pipeline: Pipeline
    provider: StubProvider


def life(store: Store, *, complete: bool = True, retry_for_s: float = 600.0) -> Life:
    jobs = [
        job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d"), finished_ts=1),
        job(2, ActionType.CREATE_TABLE, 2, schema_id=2, table_id=T.id, table_info=T, finished_ts=2),
    ]
    destination = MemorySink(store, retry_for_s=retry_for_s)
    position = destination.open(Identity(1, "default", "n"), BEGIN_TS)
    schema = Schema.open(JobHistory(jobs), position_ts=position.commit_ts, schema_version=2, complete=complete)
    provider = StubProvider(schema)
    provider.complete = complete
    return Life(
        Pipeline(destination, provider, Cut(4, 100, "d"), position_ts=position.commit_ts, intent=position.intent),
        provider,
    )


def rows(*steps: Step, info: TableInfo = T) -> list[bytes]:
    return [transaction([(info, step)], commit_ts=ts(10 + n), version=2) for n, step in enumerate(steps)]


def put(key: int, value: int) -> Step:
    return ("insert", {}, {1: key, 2: value})


TWICE = rows(
    *(put(key, 0) for key in range(20)),
    put(7, 1),
    ("update", {1: 7, 2: 0}, {1: 7, 2: 2}),
    ("update", {1: 3, 2: 0}, {1: 103, 2: 0}),
    ("delete", {1: 5, 2: 0}, {}),
)


def standing(store: Store) -> list[tuple[int, ...]]:
    """(id, v) of every row, of the net ones and of those that came one by one."""
    found = [bytes(row).strip(b"()").split(b",") for row in store.rows[("d", "t")].values() if isinstance(row, bytes)]
    for literals in store.bags.get(("d", "t"), []):
        found.append([value for value in literals if isinstance(value, bytes)])
    return sorted(tuple(map(int, values)) for values in found)


EXPECTED = sorted([*((key, 0) for key in range(20) if key not in (3, 5, 7)), (7, 2), (103, 0)])


@pytest.mark.parametrize("parts", [1, 3])
def test_later_row_of_one_key_wins_in_distributed_batch(parts: int) -> None:
    """Rule 21: the later one stays, as where a batch ends between them."""
    store = Store()
    feed = LocalBatch([TWICE[n::parts] for n in range(parts)], BEGIN_TS, UNTIL)
    now = life(store)
    now.pipeline.run(PLAN, feed)
    assert standing(store) == EXPECTED
    assert (store.intent, store.commit_ts, now.pipeline.open_intent) == (None, UNTIL, None)


UNKNOWN = rows(("insert", {}, {1: 1, 2: 1, 3: 9}), info=MORE)


def test_column_skipped_in_open_batch_is_skipped_after_restart() -> None:
    """Rule 17: what was found out before the range was recorded died with its life; the range must end as it began."""
    store, feed = Store(), LocalBatch([UNKNOWN], BEGIN_TS, UNTIL)
    former = MemorySink(store)
    former.open(Identity(1, "default", "n"), BEGIN_TS)
    former.begin(INTENT)
    life(store, complete=False).pipeline.run(replace(PLAN, intent=INTENT), feed)
    assert standing(store) == [(1, 1)]


def test_rows_with_unknown_columns_are_not_distributed() -> None:
    """Rule 14: whether such a row waits, or needs a DDL first, is settled before anything is recorded."""
    store, feed = Store(), LocalBatch([UNKNOWN], BEGIN_TS, UNTIL)
    now = life(store, complete=False)
    asked: list[UnknownColumn] = []

    def resolve_column(error: UnknownColumn) -> bool:
        asked.append(error)
        now.provider.schema.skip_column(error.table_id, error.column_id, error.schema_version)
        return True

    now.provider.resolve_column = resolve_column  # type: ignore[method-assign]
    now.pipeline.run(PLAN, feed)
    assert len(asked) == 1 and not feed.distributed_jobs
    assert standing(store) == [(1, 1)]


def folded(now: Life) -> PlannedBatch:
    return replace(PLAN, fold=now.pipeline.fold_order(PLAN))


def test_folded_batch_with_unknown_column_is_replanned_in_driver() -> None:
    """Rule 14, where the reading tasks fold at once: nothing is recorded, and the next plan is for the driver."""
    store, feed = Store(), LocalBatch([UNKNOWN], BEGIN_TS, UNTIL)
    now = life(store, complete=False)
    plan = folded(now)
    assert plan.fold is not None
    with pytest.raises(NotDistributed, match="planned again"):
        now.pipeline.read(plan, feed)
    assert (store.intent, store.commit_ts, feed.distributed_jobs) == (None, BEGIN_TS, [])
    assert now.pipeline.driver_from == BEGIN_TS


def test_folded_batch_of_unverified_table_is_read_again() -> None:
    """Asking the source once is enough, and it is distributed then."""
    store, feed = Store(), LocalBatch([rows(put(1, 1))], BEGIN_TS, UNTIL)
    now = life(store, complete=False)
    with pytest.raises(NotDistributed, match="planned again"):
        now.pipeline.read(folded(now), feed)
    assert now.pipeline.driver_from is None
    plan = folded(now)
    now.pipeline.read(plan, feed)
    assert store.intent is None
    now.pipeline.run(plan, feed)
    assert standing(store) == [(1, 1)] and feed.checks == 0


def test_open_batch_with_incomplete_history_is_not_folded_by_reading_tasks() -> None:
    for complete in (False, True):
        found = life(Store(), complete=complete).pipeline.fold_order(replace(PLAN, intent=INTENT))
        assert (found is not None) is complete


def test_batch_read_with_another_cut_version_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read before a sink came to cut in another way (rule 31); nothing of it is begun."""
    store = Store()
    made = life(store)
    feed = LocalBatch([rows(put(1, 1), put(2, 2))], BEGIN_TS, UNTIL)
    plan = folded(made)
    assert plan.fold is not None
    monkeypatch.setattr(type(plan.fold), "cut_version", HASH_VERSION + 1)
    with pytest.raises(NotDistributed, match="cut otherwise"):
        made.pipeline.run(plan, feed)
    assert store.intent is None
    monkeypatch.undo()
    made.pipeline.run(folded(made), feed)
    assert store.commit_ts == UNTIL


def test_a_sink_is_told_of_each_view_before_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's topics must be known by then; a view that it knows is not told again."""
    now = life(Store())
    told: list[object] = []
    monkeypatch.setattr(MemorySink, "prepare", lambda _, view: told.append(view))
    first = folded(now)
    assert first.fold is not None and told == [now.provider.schema.view()]
    folded(now)
    assert len(told) == 1
    now.provider.schema.settle(9)
    folded(now)
    assert told == [told[0], now.provider.schema.view()] and told[0] is not told[1]


# --- the destination fails while slots are written --------------------------------------------------------------------


@dataclass
class GivingUp(LocalBatch):
    """Its tasks write all slots, and then one of them gives up `times` times. `seen`: what was shown at each try."""

    times: int = 3
    failures: Failures = field(default_factory=Failures)
    seen: list[Failure | None] = field(default_factory=list)

    def distribute(self, job: DistributedJob) -> Sequence[Receipt]:
        self.seen.append(self.failures.now)
        found = super().distribute(job)
        if len(self.distributed_jobs) <= self.times:
            error = DestinationDown(f"slot 3: gave up: refused {len(self.distributed_jobs)}")
            error.failing_s = 30.0
            raise error
        return found


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    shown = Failures()
    monkeypatch.setattr(retry, "FAILURES", shown)
    return shown


PUTS = [rows(*(put(key, key) for key in range(9)))]


def test_a_batch_whose_slots_give_up_is_written_until_they_succeed_and_tells_why(failures: Failures) -> None:
    """Slots that are committed are skipped, and a task may fail for longer each time."""
    store, feed = Store(), GivingUp(PUTS, BEGIN_TS, UNTIL, failures=failures)
    with capture_logs() as lines:
        life(store).pipeline.run(PLAN, feed)
    assert standing(store) == [(key, key) for key in range(9)] and (store.intent, store.commit_ts) == (None, UNTIL)
    assert [job.retry_for_s for job in feed.distributed_jobs] == [10, 20, 40, 60]
    told = [f"slot 3: gave up: refused {n}" for n in (1, 2, 3)]
    assert [now.error if now else "" for now in feed.seen] == ["", *told]
    last = feed.seen[-1]
    assert last is not None and last.what == "batch" and 30 <= last.last_s - last.since_s < 300
    assert failures.now is None and failures.last is not None
    events = [(line["event"], line["what"]) for line in lines if line["event"].startswith("destination")]
    assert events == [("destination: trying again", "batch"), ("destination: it works again", "batch")]


def test_a_batch_whose_slots_give_up_for_as_long_as_the_sink_retries_is_left_open() -> None:
    store = Store()
    made = life(store, retry_for_s=20.0)
    with pytest.raises(DestinationDown, match="batch: gave up after 30 s: slot 3: gave up: refused 1"):
        made.pipeline.run(PLAN, GivingUp(PUTS, BEGIN_TS, UNTIL))
    assert store.intent == made.pipeline.open_intent is not None
    life(store).pipeline.run(replace(PLAN, intent=store.intent), LocalBatch(PUTS, BEGIN_TS, UNTIL))
    assert standing(store) == [(key, key) for key in range(9)] and store.intent is None


def test_a_sink_that_does_not_retry_raises_the_error_of_its_slot() -> None:
    with pytest.raises(DestinationDown, match=r"^slot 3: gave up: refused 1$"):
        life(Store(), retry_for_s=0.0).pipeline.run(PLAN, GivingUp(PUTS, BEGIN_TS, UNTIL))


def test_a_batch_whose_slots_give_up_ends_when_the_drainer_stops() -> None:
    made = life(Store())

    class StoppedMeanwhile(GivingUp):
        def distribute(self, job: DistributedJob) -> Sequence[Receipt]:
            made.pipeline.stop()
            return super().distribute(job)

    feed = StoppedMeanwhile(PUTS, BEGIN_TS, UNTIL, times=1 << 30)
    with pytest.raises(Stopped):
        made.pipeline.run(PLAN, feed)
    assert len(feed.distributed_jobs) == 1
