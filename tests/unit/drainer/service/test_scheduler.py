"""The shell around the scheduler: what it asks, when it advances, and how --until-now ends. No Spark, no pump."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import Mode, PlannedBatch, Sizes
from drainer.apply.fold_order import FoldOrder, PackedView
from drainer.apply.progress import Decisions
from drainer.pumps.go_pump import ReceivedBinlog, cut, received
from drainer.pumps.survey import HeldBack
from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, PumpRange, Stop, Watermark, watermark_of
from drainer.service.scheduler import SHARES_TRIED, Scheduler
from drainer.sink.base import Intent

SIZES = Sizes(distributed_bytes_min=1000, distributed_bytes_max=8000)
Answer = Callable[[int, BatchLimits], Watermark]


def mark(resolved_ts: int, **changes: Any) -> PumpMark:
    return replace(PumpMark("a", "h", True, resolved_ts, resolved_ts, 0, 0, Stop.RESOLVED), **changes)


class Pumps:
    """Answers what it is told, and remembers what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[int, BatchLimits]] = []

    async def survey(self, *, after_ts: int, limits: BatchLimits) -> Watermark:
        self.asked.append((after_ts, limits))
        return self.answer(after_ts, limits)

    async def count(self, part: PumpRange) -> Counted | None:
        return None


class Position:
    """The pipeline as the scheduler sees it."""

    def __init__(self, ts: int) -> None:
        self.position_ts = ts
        self.schema_version = 3
        self.driver_from: int | None = None
        self.open_intent: Intent | None = None
        self.advances: list[int] = []
        self.stored: list[int] = []
        self.decisions = Decisions()
        self.fold: FoldOrder | None = None

    def advance(self, ts: int) -> None:
        self.position_ts = ts
        self.advances.append(ts)

    def store_position(self) -> None:
        self.stored.append(self.position_ts)

    def fold_order(self, plan: object) -> FoldOrder | None:
        return self.fold


def made(answer: Answer, position: Position, **more: object) -> tuple[Scheduler, Pumps]:
    pumps = Pumps(answer)
    loop = asyncio.get_running_loop()
    return Scheduler(pumps, position, SIZES, loop=loop, **more), pumps  # type: ignore[arg-type]


async def next_until(scheduler: Scheduler, start_ts: int) -> int:
    return await asyncio.to_thread(scheduler.next_until, start_ts)


async def test_scheduler_plans_batch_and_its_tasks() -> None:
    found = mark(100, batch_bytes=10, batch_count=1)
    scheduler, _ = made(lambda *_: watermark_of((found,), floor_ts=0), Position(50))
    assert await next_until(scheduler, 50) == 100
    tasks, fold = scheduler.tasks(50, 100)
    assert [(r.after_ts, r.until_ts) for task in tasks for r in task] == [(50, 100)] and fold is None
    plan = scheduler.batches.planned(100)
    assert plan is not None and plan.mode is Mode.DRIVER


async def test_batch_begins_at_position_when_sparks_offset_lags() -> None:
    """Advances happen without a batch: the next one begins at the position, whatever Spark's start offset is."""
    found = mark(100, batch_bytes=10, batch_count=1)
    scheduler, pumps = made(lambda *_: watermark_of((found,), floor_ts=0), Position(70))
    assert await next_until(scheduler, 50) == 100
    assert pumps.asked[0][0] == 70
    plan = scheduler.batches.planned(100)
    assert plan is not None and plan.after_ts == 70


async def test_scheduler_without_new_binlogs_waits_between_surveys() -> None:
    scheduler, pumps = made(lambda *_: watermark_of((mark(50),), floor_ts=0), Position(50))
    begin = time.monotonic()
    assert await next_until(scheduler, 50) == 50
    assert 0.1 < time.monotonic() - begin < 60
    assert len(pumps.asked) < 20 and scheduler.batches.planned(50) is None


async def test_position_without_changes_is_advanced_only_at_intervals() -> None:
    position = Position(50)
    ts = iter(range(60, 10_000))
    scheduler, _ = made(lambda *_: watermark_of((mark(next(ts)),), floor_ts=0), position)
    await next_until(scheduler, 50)
    await next_until(scheduler, 50)
    assert position.advances == [60]
    assert scheduler.watermark_state.applied_ts > 60


async def test_pump_that_holds_watermark_is_shown_until_it_answers() -> None:
    held = [True]

    def answer(*_: object) -> Watermark:
        if held:
            raise HeldBack("dead", "does not answer")
        return watermark_of((mark(100, batch_bytes=1, batch_count=1),), floor_ts=0)

    scheduler, _ = made(answer, Position(50))
    assert await next_until(scheduler, 50) == 50
    assert "dead" in scheduler.watermark_state.held_back and scheduler.watermark_state.held_since is not None
    held.clear()
    assert await next_until(scheduler, 50) == 100
    assert (scheduler.watermark_state.held_back, scheduler.watermark_state.held_since) == ("", None)


async def test_until_now_ends_at_watermark_of_start_survey() -> None:
    position, reached = Position(50), asyncio.Event()
    resolved = [100]
    scheduler, _ = made(
        lambda *_: watermark_of((mark(resolved[0], batch_bytes=10, batch_count=1),), floor_ts=0),
        position,
        until_now=True,
        on_reached=reached.set,
    )
    assert await next_until(scheduler, 50) == 100
    position.position_ts, resolved[0] = 100, 200
    assert await next_until(scheduler, 100) == 100
    assert reached.is_set()


async def test_open_intent_is_planned_before_new_batches() -> None:
    position = Position(50)
    position.open_intent = Intent(50, 90, 4, 100, 1, "d", ("a",), (9,))
    found = mark(100, batch_bytes=9000, batch_count=9)
    scheduler, _ = made(lambda *_: watermark_of((found,), floor_ts=0), position)
    assert await next_until(scheduler, 50) == 90
    plan = scheduler.batches.planned(90)
    assert plan is not None and plan.intent == position.open_intent


@pytest.mark.parametrize("given_up", [(), ("lost",)])
async def test_open_intent_with_missing_pump_holds_until_given_up(given_up: tuple[str, ...]) -> None:
    """Forced offline in the middle of a batch: it holds back, by name, until an operator says that it is lost."""
    position = Position(50)
    position.open_intent = Intent(50, 90, 4, 100, 1, "d", ("a", "lost"), (9, 9))
    found = mark(100, batch_bytes=9000, batch_count=9)
    scheduler, _ = made(lambda *_: watermark_of((found,), floor_ts=0), position, finish_without=given_up)
    assert await next_until(scheduler, 50) == (90 if given_up else 50)
    assert ("lost" in scheduler.watermark_state.held_back) is not bool(given_up)
    assert scheduler.watermark_state.held_by == ("" if given_up else "lost")


async def test_next_batch_is_surveyed_during_apply_under_backlog() -> None:
    def answer(after_ts: int, _: BatchLimits) -> Watermark:
        end_ts = after_ts + 10
        found = mark(1000, end_ts=end_ts, batch_bytes=8000, batch_count=9, stop=Stop.LIMIT)
        return watermark_of((found,), floor_ts=0)

    position = Position(50)
    scheduler, pumps = made(answer, position)
    assert await next_until(scheduler, 50) == 60
    await asyncio.sleep(0)
    assert [after_ts for after_ts, _ in pumps.asked] == [50, 60]
    position.position_ts = 60
    assert await next_until(scheduler, 60) == 70
    assert [after_ts for after_ts, _ in pumps.asked] == [50, 60, 70]


FOLD = FoldOrder(PackedView("view", b""), "mysql", 4)


def backlog(after_ts: int, _: BatchLimits) -> Watermark:
    """Full batches of ten ticks each."""
    found = mark(1000, end_ts=after_ts + 10, batch_bytes=8000, batch_count=9, stop=Stop.LIMIT)
    return watermark_of((found,), floor_ts=0)


async def begun(answer: Answer, fold: FoldOrder | None = FOLD) -> tuple[Scheduler, Pumps, Position]:
    """A batch (50, 60] that is being applied."""
    position = Position(50)
    position.fold = fold
    scheduler, pumps = made(answer, position)
    scheduler.batches.begun = PlannedBatch(50, 60, Mode.DISTRIBUTED, (), 1, fold=FOLD)
    position.open_intent = Intent(50, 60, 4, 100, 1, "d")
    return scheduler, pumps, position


async def test_distributed_batch_is_planned_while_another_is_applied() -> None:
    """It is read meanwhile. The open intent is that of the batch before it, and is not finished twice."""
    scheduler, _, position = await begun(backlog)
    assert await next_until(scheduler, 60) == 70
    plan = scheduler.batches.planned(70)
    assert plan is not None and (plan.after_ts, plan.intent, plan.fold) == (60, None, FOLD)
    assert scheduler.tasks(60, 70)[1] == FOLD
    position.position_ts, position.open_intent = 60, None
    scheduler.applied()
    assert scheduler.watermark_state.applied_ts == 60
    assert scheduler.batches.planned(70) is plan
    scheduler.batches.begun = plan
    assert await next_until(scheduler, 70) == 80
    assert scheduler.batches.planned(70) is plan, "a micro-batch finds its own plan, not the newest"
    position.position_ts = 70
    scheduler.applied()
    await next_until(scheduler, 80)
    assert scheduler.batches.planned(70) is None, "it has been applied"


def ddl_ahead(after_ts: int, limits: BatchLimits) -> Watermark:
    """A DDL stands right behind 60, and there is something behind it."""
    if limits.stop_at_schema and after_ts >= 60:
        return watermark_of((mark(1000, end_ts=60, stop=Stop.DDL, stop_ts=61),), floor_ts=0)
    return watermark_of((mark(1000, batch_bytes=10, batch_count=1),), floor_ts=0)


def few_rows(_after_ts: int, _limits: BatchLimits) -> Watermark:
    return watermark_of((mark(1000, batch_bytes=10, batch_count=1),), floor_ts=0)


def nothing(_after_ts: int, _limits: BatchLimits) -> Watermark:
    return watermark_of((mark(1000),), floor_ts=0)


@pytest.mark.parametrize("answer", [ddl_ahead, few_rows, nothing])
async def test_batch_in_driver_waits_until_batch_before_is_applied(answer: Answer) -> None:
    scheduler, pumps, position = await begun(answer)
    for _ in range(3):
        assert await next_until(scheduler, 60) == 60
    assert len(pumps.asked) <= 2, "it is asked once, and again only when the position has moved"
    assert position.advances == []
    position.position_ts, position.open_intent = 60, None
    scheduler.applied()
    until_ts = await next_until(scheduler, 60)
    if answer is nothing:
        assert (until_ts, position.advances) == (60, [1000])
    else:
        plan = scheduler.batches.planned(1000)
        assert until_ts == 1000 and plan is not None and plan.mode is Mode.DRIVER


async def test_batch_without_fold_order_is_not_read_ahead() -> None:
    scheduler, _, _ = await begun(backlog, fold=None)
    assert await next_until(scheduler, 60) == 60


async def test_survey_ahead_that_is_held_back_is_repeated_at_position() -> None:
    """Rule 2: pumps come and go at the position alone. Until then nothing is held back."""
    held = [True]

    def answer(after_ts: int, limits: BatchLimits) -> Watermark:
        if held:
            raise HeldBack("", "the list of pumps has changed")
        return backlog(after_ts, limits)

    scheduler, pumps, position = await begun(answer)
    for _ in range(3):
        assert await next_until(scheduler, 60) == 60
    assert scheduler.watermark_state.held_back == "" and len(pumps.asked) == 1
    held.clear()
    position.position_ts, position.open_intent = 60, None
    scheduler.applied()
    assert await next_until(scheduler, 60) == 70


class Gated(Pumps):
    """Pumps that answer a question behind `after_ts` only when the test lets them."""

    def __init__(self, answer: Answer, after_ts: int) -> None:
        super().__init__(answer)
        self._after_ts = after_ts
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def survey(self, *, after_ts: int, limits: BatchLimits) -> Watermark:
        found = await super().survey(after_ts=after_ts, limits=limits)
        if after_ts == self._after_ts:
            self.reached.set()
            await self.go_on.wait()
        return found


async def test_survey_of_ended_query_plans_no_batch() -> None:
    """The batch that is being applied fails while the one behind it is planned. The next query begins at the position;
    what comes of the old question must not stand in the place of its plan."""
    position = Position(50)
    position.fold = FOLD
    pumps = Gated(backlog, 60)
    scheduler = Scheduler(pumps, position, SIZES, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    before = scheduler.for_query()
    scheduler.batches.begun = PlannedBatch(50, 60, Mode.DISTRIBUTED, (), 1, fold=FOLD)
    old = asyncio.create_task(asyncio.to_thread(before, 60))
    await asyncio.wait_for(pumps.reached.wait(), 60)
    query = scheduler.for_query()
    new = asyncio.create_task(asyncio.to_thread(query, 50))
    await asyncio.wait((new,), timeout=0.5)  # long enough to be answered, if it does not wait for the old one
    pumps.go_on.set()
    assert await asyncio.wait_for(old, 60) == 60, "nothing new"
    assert await asyncio.wait_for(new, 60) == 60
    plan = scheduler.batches.planned(60)
    assert plan is not None and (plan.after_ts, plan.until_ts) == (50, 60)
    assert scheduler.tasks(50, 60) == (plan.tasks, FOLD)
    assert await asyncio.to_thread(before, 60) == 60
    assert scheduler.batches.planned(60) is plan, "nor does a question that comes late take it away"


async def test_advance_of_ended_query_completes_before_next_plans() -> None:
    """Its question found nothing up to 1000. Until that is written the next query plans nothing: its batch would begin
    where the destination does not stand any more."""
    position = Position(50)
    begun, go_on = threading.Event(), threading.Event()

    def advance(ts: int) -> None:
        begun.set()
        assert go_on.wait(60)
        position.position_ts = ts

    position.advance = advance  # type: ignore[method-assign]
    rows_at_once = watermark_of((mark(2000, batch_bytes=10, batch_count=1),), floor_ts=0)
    scheduler, pumps = made(nothing, position)
    before = scheduler.for_query()
    old = asyncio.create_task(asyncio.to_thread(before, 50))
    assert await asyncio.to_thread(begun.wait, 60)
    pumps.answer = lambda *_: rows_at_once
    query = scheduler.for_query()
    new = asyncio.create_task(asyncio.to_thread(query, 50))
    await asyncio.wait((new,), timeout=0.5)
    go_on.set()
    assert await asyncio.wait_for(old, 60) == 50
    assert await asyncio.wait_for(new, 60) == 2000
    plan = scheduler.batches.planned(2000)
    assert plan is not None and plan.after_ts == position.position_ts == 1000


async def test_stopped_scheduler_plans_nothing() -> None:
    found = mark(100, batch_bytes=10, batch_count=1)
    scheduler, pumps = made(lambda *_: watermark_of((found,), floor_ts=0), Position(50))
    scheduler.stop()
    assert await next_until(scheduler, 50) == 50
    assert pumps.asked == []


async def test_all_pumps_are_asked_concurrently_for_their_counts() -> None:
    """One after another, a hundred pumps would be a hundred ways there and back before each batch (rule 22)."""

    def answer(*_: object) -> Watermark:
        cut = {"batch_bytes": 4000, "batch_count": 9, "stop": Stop.LIMIT}
        marks = [mark(1000, node_id=f"p{n}", end_ts=100 + n, **cut) for n in range(30)]
        return watermark_of(tuple(marks), floor_ts=0)

    asked: list[str] = []
    everybody = asyncio.Event()

    async def count(part: PumpRange) -> Counted:
        asked.append(part.node_id)
        if len(asked) == 29:  # all but the one whose end is the batch's
            everybody.set()
        await everybody.wait()
        return Counted(7, 70)

    scheduler, pumps = made(answer, Position(50))
    pumps.count = count  # type: ignore[attr-defined]
    assert await asyncio.wait_for(next_until(scheduler, 50), 60) == 100
    plan = scheduler.batches.planned(100)
    assert plan is not None
    found = plan.planned
    assert found == {"p0": Counted(9, None), **{f"p{n}": Counted(7, 70) for n in range(1, 30)}}


class Backlogs:
    """Pumps that hold binlogs of 100 bytes at given times, all resolved; each cuts its batch as ours do."""

    def __init__(self, *times: list[int]) -> None:
        self._binlogs = [[ReceivedBinlog(ts, 100, False, 1) for ts in sorted(held)] for held in times]
        self.surveys, self.pumps = 0, len(times)

    def __call__(self, after_ts: int, limits: BatchLimits) -> Watermark:
        self.surveys += 1
        marks = []
        for number, held in enumerate(self._binlogs):
            left = (binlog for binlog in held if binlog.commit_ts > after_ts)
            found = cut(received(left), limits, node_id=f"p{number}", host="h", resolved_ts=1 << 30)
            marks.append(replace(found, extension=True))
        return watermark_of(tuple(marks), floor_ts=0)

    def bytes_in(self, after_ts: int, until_ts: int) -> int:
        return sum(100 for held in self._binlogs for binlog in held if after_ts < binlog.commit_ts <= until_ts)


async def planned_of(backlogs: Backlogs, rounds: int) -> list[int]:
    """Bytes of one batch after another."""
    position = Position(0)
    scheduler, _ = made(backlogs, position)
    scheduler.watermark_state.pumps = backlogs.pumps
    found = []
    for _ in range(rounds):
        plan = await scheduler._poll()
        if plan is None:
            break
        found.append(backlogs.bytes_in(plan.after_ts, plan.until_ts))
        position.position_ts = plan.until_ts
    return found


async def test_single_busy_pump_among_many_fills_whole_batch() -> None:
    """Asked for an equal share each, it would end every batch at a hundredth, too little to be distributed."""
    backlogs = Backlogs(list(range(1, 2000)), *([] for _ in range(99)))
    batches = await planned_of(backlogs, 20)
    assert min(batches) >= SIZES.distributed_bytes_max // 2 and len(batches) == 20
    assert backlogs.surveys == len(batches) + 1, "what was learned is asked for first"


async def test_survey_size_cut_by_new_schema_is_not_asked_for_again() -> None:
    """The first question of a life is for a whole batch of each pump, for how many there are is not known yet. Where it
    meets rows of a new schema it brings a batch in the driver, and the next question is for equal shares."""
    asked: list[int] = []
    position = Position(0)

    def answer(after_ts: int, limits: BatchLimits) -> Watermark:
        asked.append(limits.batch_bytes_max)
        size, stop = (limits.batch_bytes_max, Stop.LIMIT) if after_ts else (10, Stop.SCHEMA)
        found = mark(1000, end_ts=after_ts + 10, batch_bytes=size, batch_count=9, stop=stop, stop_ts=after_ts + 11)
        return watermark_of((found, replace(found, node_id="another")), floor_ts=0)

    scheduler, _ = made(answer, position)
    await scheduler._poll()
    position.position_ts = 10
    scheduler.watermark_state.pumps = 2
    before = len(asked)
    plan = await scheduler._poll()
    assert plan is not None and plan.mode is Mode.DISTRIBUTED
    assert asked[before] == SIZES.distributed_bytes_max // 2


async def test_batch_size_stays_bounded_when_all_pumps_become_busy() -> None:
    """The share that one pump filled alone is too much for each of ten."""
    alone, together = list(range(1, 1000)), list(range(1000, 2000))
    backlogs = Backlogs([*alone, *together], *([*together] for _ in range(10)))
    batches = await planned_of(backlogs, 5000)
    assert sum(batches) == backlogs.bytes_in(0, 1 << 30)
    assert max(batches) <= SIZES.distributed_bytes_max * 5 // 4 + 11 * 100
    assert backlogs.surveys <= 2 * len(batches) + 2


@given(st.lists(st.lists(st.integers(1, 3000), max_size=300, unique=True), min_size=1, max_size=12))
def test_binlogs_of_any_pumps_are_planned_in_few_surveys(times: list[list[int]]) -> None:
    async def run() -> None:
        backlogs = Backlogs(*times)
        batches = await planned_of(backlogs, 5000)
        assert sum(batches) == backlogs.bytes_in(0, 1 << 30)
        # First question, another share three times, and a batch in the driver's.
        assert backlogs.surveys <= 5 * (len(batches) + 1)

    asyncio.run(run())


async def test_survey_with_share_that_never_fits_ends_after_few_tries() -> None:
    """Half a batch of one, and twelve of the next: a few questions, then what there is."""
    asked: list[int] = []

    def answer(_after_ts: int, limits: BatchLimits) -> Watermark:
        asked.append(limits.batch_bytes_max)
        size = 100_000 if limits.batch_bytes_max > 4000 else 1000
        assert len(asked) < 20
        found = mark(1000, end_ts=70, batch_bytes=size, batch_count=9, stop=Stop.LIMIT)
        return watermark_of((found,), floor_ts=0)

    scheduler, _ = made(answer, Position(50))
    assert await asyncio.wait_for(next_until(scheduler, 50), 60) == 70
    plan = scheduler.batches.planned(70)
    assert plan is not None and plan.mode is Mode.DISTRIBUTED
    assert len(asked) <= 1 + SHARES_TRIED + 1  # and the look ahead
