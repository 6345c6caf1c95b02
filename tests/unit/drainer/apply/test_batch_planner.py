"""What the next batch is, from the pumps' answers alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import (
    READERS_PER_TASK,
    Ask,
    Mode,
    MovePosition,
    PlannedBatch,
    Sizes,
    absent,
    decide,
    driver_limits,
    first_limits,
    resume,
)
from drainer.apply.distributed import Cut, DistributedBatches
from drainer.apply.progress import Progress
from drainer.dispatch.dispatcher import Dispatcher, PartitionSlotting
from drainer.dispatch.rules import Router
from drainer.protocol.registry import ProtocolOptions
from drainer.pumps.watermark import BatchLimits, PumpMark, Stop, Watermark, watermark_of
from drainer.sink.base import Intent, Wants
from drainer.sink.file.files import ByTable
from tests.unit.drainer.pumps.world import mark

SIZES = Sizes(
    driver_bytes_max=2000, driver_count_max=50, distributed_bytes_min=1000, distributed_bytes_max=8000, parallelism=2
)
ASKED = first_limits(SIZES, schema_version=3, pumps=2)


def seen(*marks: PumpMark) -> Watermark:
    return watermark_of(marks, floor_ts=0)


def planned(
    *marks: PumpMark, after_ts: int = 50, asked: BatchLimits = ASKED, sizes: Sizes = SIZES, **more: int
) -> object:
    return decide(seen(*marks), after_ts=after_ts, asked=asked, sizes=sizes, **more)


def batch(*marks: PumpMark, **more: Any) -> PlannedBatch:
    found = planned(*marks, **more)
    assert isinstance(found, PlannedBatch)
    return found


def end(*marks: PumpMark, **more: Any) -> tuple[Mode, int]:
    """Of the planned batch: its mode, and where it ends."""
    found = batch(*marks, **more)
    return found.mode, found.until_ts


def test_first_limits_stop_at_next_ddl_or_schema_version() -> None:
    assert BatchLimits(4000, stop_at_schema=True, schema_version=3, large_bytes_min=4 << 20) == ASKED


def test_destination_without_distribution_gets_only_batches_in_driver() -> None:
    sizes = Sizes(driver_bytes_max=8000, driver_count_max=100, distributed_bytes_max=0)
    asked = first_limits(sizes, schema_version=3, pumps=2)
    assert asked == BatchLimits(4000, 50, large_bytes_min=4 << 20)
    full = mark(batch_bytes=4000, batch_count=50, stop=Stop.LIMIT, end_ts=60)
    assert end(full, after_ts=10, asked=asked, sizes=sizes) == (Mode.DRIVER, 60)


def test_planner_without_new_binlogs_decides_nothing() -> None:
    assert planned(mark(), mark("b"), after_ts=100) is None


def test_planner_without_data_advances_position() -> None:
    assert planned(mark(), mark("b", resolved_ts=90, end_ts=90)) == MovePosition(90)


def test_position_0_begins_at_purge_point() -> None:
    """`initial-commit-ts = 0` begins with the oldest binlog that is sure to be there; a position stays an error."""
    marks = mark(batch_bytes=300, batch_count=2, purged_ts=40), mark("b", purged_ts=30)
    assert planned(*marks, after_ts=0) == MovePosition(40)
    assert planned(*marks, after_ts=0, ceiling_ts=20) == MovePosition(20)
    assert isinstance(planned(*marks, after_ts=40), PlannedBatch)
    behind = mark("b", resolved_ts=35, end_ts=35)
    assert planned(marks[0], behind, after_ts=0) is None
    assert batch(mark(batch_bytes=300, batch_count=2), after_ts=0).after_ts == 0


def test_small_batch_runs_in_driver_and_pulls_only_its_pump() -> None:
    found = batch(mark(batch_bytes=300, batch_count=2), mark("b"))
    assert (found.mode, found.after_ts, found.until_ts) == (Mode.DRIVER, 50, 100)
    assert [[r.node_id for r in task] for task in found.tasks] == [["a"]]


def test_small_batch_of_several_pumps_is_one_task() -> None:
    found = batch(mark(batch_bytes=300, batch_count=2), mark("b", batch_bytes=300, batch_count=2))
    assert [[r.node_id for r in task] for task in found.tasks] == [["a", "b"]]


def test_backlog_is_distributed_up_to_first_batch_end_of_pump() -> None:
    marks = (
        mark(batch_bytes=4000, batch_count=40, stop=Stop.LIMIT, end_ts=70, split_ts=(55, 60, 65)),
        mark("b", batch_bytes=3000, batch_count=30, end_ts=100, split_ts=(60, 70, 80)),
    )
    found = batch(*marks)
    assert (found.mode, found.until_ts) == (Mode.DISTRIBUTED, 70)
    for name in ("a", "b"):
        ranges = [r for task in found.tasks for r in task if r.node_id == name]
        assert ranges[0].after_ts == 50 and ranges[-1].until_ts == 70


def test_backlog_before_ddl_is_distributed_up_to_ddl() -> None:
    marks = (mark(batch_bytes=4000, batch_count=40, stop=Stop.DDL, stop_ts=71, end_ts=70), mark("b"))
    assert end(*marks) == (Mode.DISTRIBUTED, 70)


def test_little_data_before_ddl_asks_for_batch_with_ddl() -> None:
    marks = (mark(batch_bytes=40, batch_count=1, stop=Stop.DDL, stop_ts=71, end_ts=70), mark("b"))
    found = planned(*marks)
    assert found == Ask(driver_limits(SIZES, pumps=2))
    again = (mark(batch_bytes=80, batch_count=2), mark("b"))
    assert end(*again, asked=found.limits) == (Mode.DRIVER, 100)


def test_row_of_newer_schema_at_position_asks_again() -> None:
    marks = (mark(stop=Stop.SCHEMA, stop_ts=51, end_ts=50), mark("b"))
    assert isinstance(planned(*marks), Ask)


def test_watermark_below_position_plans_nothing() -> None:
    """A pump that was killed may begin a little below what it had given out (rule 4): it is waited for."""
    assert planned(mark(resolved_ts=49, end_ts=49), mark("b")) is None
    busy = mark("b", batch_bytes=300, batch_count=2)
    assert planned(mark(resolved_ts=49, end_ts=49), busy) is None


def test_batch_does_not_exceed_ceiling() -> None:
    marks = (mark(batch_bytes=300, batch_count=2), mark("b"))
    assert batch(*marks, ceiling_ts=80).until_ts == 80
    assert planned(*marks, after_ts=80, ceiling_ts=80) is None


def test_open_intent_is_planned_with_its_exact_range() -> None:
    """Rule 17: its range, whatever lies behind it."""
    intent = Intent(50, 90, 4, 100, 1, "x", ("a", "b"), (90, 0))
    marks = (mark(batch_bytes=9000, batch_count=90, split_ts=(60, 70)), mark("b"))
    found = resume(seen(*marks), intent, SIZES)
    assert found is not None
    assert (found.after_ts, found.until_ts, found.mode, found.intent) == (50, 90, Mode.DISTRIBUTED, intent)
    assert {r.node_id for task in found.tasks for r in task} == {"a", "b"}


def test_open_intent_is_read_from_its_recorded_pumps() -> None:
    """Rule 16: one that was passed then and is back would shift what is in each chunk; one that is gone would too."""
    intent = Intent(50, 90, 4, 100, 1, "x", ("a", "b"), (90, 0))
    marks = (mark(batch_bytes=9000, batch_count=90), mark("b"), mark("back", batch_bytes=10, batch_count=1))
    found = resume(seen(*marks), intent, SIZES)
    assert found is not None
    assert {r.node_id for task in found.tasks for r in task} == {"a", "b"}
    assert absent(seen(*marks), intent) == ()
    assert absent(seen(mark("b")), intent) == ("a",)


def test_open_intent_waits_until_watermark_covers_it() -> None:
    assert resume(seen(mark(resolved_ts=89)), Intent(50, 90, 4, 100, 1, "x"), SIZES) is None


marks_strategy = st.builds(
    lambda resolved, end, size, count, stop: mark(
        "m",
        resolved_ts=resolved,
        end_ts=min(end, resolved),
        batch_bytes=size,
        batch_count=count,
        stop=stop,
        stop_ts=min(end, resolved) + 1 if stop is Stop.LARGE else 0,
        stop_bytes=5 << 20 if stop is Stop.LARGE else 0,
    ),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 9000),
    st.integers(0, 90),
    st.sampled_from(Stop),
)


@given(st.lists(marks_strategy, min_size=1, max_size=4), st.integers(0, 500), st.none() | st.integers(0, 1000))
def test_plan_for_any_marks_stays_at_or_below_watermark(
    marks: list[PumpMark], after_ts: int, ceiling_ts: int | None
) -> None:
    """Whatever the pumps answer: a batch begins at the position, gets on, and stays at or below the watermark."""
    watermark = seen(*marks)
    found = decide(watermark, after_ts=after_ts, asked=ASKED, sizes=SIZES, ceiling_ts=ceiling_ts)
    if isinstance(found, PlannedBatch | MovePosition):
        assert after_ts < found.until_ts <= watermark.ts
        assert ceiling_ts is None or found.until_ts <= ceiling_ts
    if isinstance(found, PlannedBatch):
        assert found.after_ts == after_ts
        ranges = [r for task in (*found.tasks, found.large) for r in task]
        assert all(after_ts <= r.after_ts < r.until_ts <= found.until_ts for r in ranges)
        larges = [m.stop_ts for m in marks if m.stop is Stop.LARGE and m.stop_ts > after_ts]
        if found.mode is Mode.LARGE:
            assert found.until_ts in larges and found.large and not found.tasks
        else:
            assert all(found.until_ts < ts for ts in larges)


def large(name: str, ts: int, **changes: object) -> PumpMark:
    return mark(name, end_ts=ts - 1, stop=Stop.LARGE, stop_ts=ts, stop_bytes=9 << 20, **changes)


def test_large_transaction_is_batch_of_its_own() -> None:
    """The driver pulls it, so Spark has no task; only pumps that may hold something of its commit_ts are asked."""
    found = batch(large("a", 70), mark("b"), mark("c", end_ts=69, stop=Stop.SCHEMA, stop_ts=70))
    assert (found.mode, found.after_ts, found.until_ts, found.tasks) == (Mode.LARGE, 50, 70, ())
    assert (found.batch_bytes, found.holders) == (9 << 20, ("a",))
    assert [(r.node_id, r.after_ts, r.until_ts) for r in found.large] == [("a", 50, 70), ("c", 50, 70)]


def test_binlogs_before_large_transaction_are_planned_first() -> None:
    assert end(large("a", 70, batch_bytes=300, batch_count=2), mark("b")) == (Mode.DRIVER, 69)
    assert end(large("a", 70, batch_bytes=4000, batch_count=40), mark("b")) == (Mode.DISTRIBUTED, 69)
    assert end(large("a", 70), mark("b", batch_bytes=300, batch_count=2)) == (
        Mode.DRIVER,
        69,
    )  # before or behind: who knows
    found = batch(large("a", 70), mark("b", batch_bytes=300, batch_count=2), after_ts=69)
    assert (found.mode, [r.node_id for r in found.large]) == (Mode.LARGE, ["a", "b"])


def test_large_transaction_on_two_pumps_is_read_from_both() -> None:
    """Its writer may have written it twice, to be sure (rule 19)."""
    found = batch(large("a", 70), large("b", 70), large("c", 71))
    assert found.holders == ("a", "b")
    assert [r.node_id for r in found.large] == ["a", "b"]


def test_large_transaction_waits_for_watermark_and_ceiling() -> None:
    slow = mark("b", resolved_ts=60, end_ts=60)
    assert end(large("a", 70), slow) == (Mode.DRIVER, 60)
    assert planned(large("a", 70), slow, after_ts=60) is None
    assert end(large("a", 70), mark("b"), ceiling_ts=69) == (Mode.DRIVER, 69)
    assert planned(large("a", 70), mark("b"), after_ts=69, ceiling_ts=69) is None


def test_batch_is_not_distributed_while_key_is_unenforced() -> None:
    """Rule 12: a distributed batch ends where the job that drops a key begins; behind it batches are applied in the
    driver."""
    marks = (mark(batch_bytes=4000, batch_count=40), mark("b"))
    assert end(*marks, driver_from=80) == (Mode.DISTRIBUTED, 80)
    behind = planned(*marks, after_ts=80, driver_from=80)
    assert behind == Ask(driver_limits(SIZES, pumps=2))
    assert batch(*marks, after_ts=80, asked=behind.limits, driver_from=80).mode is Mode.DRIVER


@given(
    st.lists(st.integers(1, 1 << 30), min_size=1, max_size=120),
    st.integers(1, 64),
    st.booleans(),
)
def test_tasks_are_bounded_by_parallelism_and_hold_every_range_once(
    sizes: list[int], parallelism: int, whole: bool
) -> None:
    """A hundred pumps are not a hundred tasks of two processors; none is read twice or left out."""
    splits = () if whole else (60, 70, 80)
    marks = [mark(f"p{n}", batch_bytes=size, batch_count=5, split_ts=splits) for n, size in enumerate(sizes)]
    limits = Sizes(distributed_bytes_min=1, distributed_bytes_max=1 << 40, parallelism=parallelism)
    plan = batch(*marks, sizes=limits)
    assert plan.mode is Mode.DISTRIBUTED
    assert len(plan.tasks) <= READERS_PER_TASK * parallelism
    for name in (one.node_id for one in marks):
        ranges = [part for task in plan.tasks for part in task if part.node_id == name]
        edges = [ranges[0].after_ts, *(part.until_ts for part in ranges)]
        assert (edges[0], edges[-1]) == (50, 100)
        assert [part.after_ts for part in ranges] == edges[:-1]
    weights = {one.node_id: one.batch_bytes for one in marks}
    if whole and len(sizes) > READERS_PER_TASK * parallelism:
        heaviest = max(sum(weights[part.node_id] for part in task) for task in plan.tasks)
        assert heaviest <= sum(sizes) / (READERS_PER_TASK * parallelism) + max(sizes)


def test_batch_in_driver_of_many_pumps_has_few_tasks() -> None:
    marks = [mark(f"p{n}", batch_bytes=100 << 10, batch_count=5) for n in range(30)]
    plan = batch(*marks, asked=driver_limits(SIZES, pumps=30))
    assert plan.mode is Mode.DRIVER
    assert len(plan.tasks) == READERS_PER_TASK * SIZES.parallelism
    assert sorted(len(task) for task in plan.tasks) == [7, 7, 8, 8]


# How many slots a batch has: as many as suit the executors, unless the sink or the user says so.


PLAN = PlannedBatch(1, 2, Mode.DISTRIBUTED, (), 10)


def by_partition(count: int) -> PartitionSlotting:
    router = Router([], "shop", protocol="open-protocol")
    return PartitionSlotting(Dispatcher(router, {"shop": 3}, ProtocolOptions("open-protocol").zone), count)


def slots(slotting: object, *, tasks: int, configured: int = 0) -> int:
    """Of a batch after Spark has told how many tasks run at once."""
    sink: Any = SimpleNamespace(wants=Wants.CHANGES, slotting=slotting)
    provider: Any = SimpleNamespace()
    distributed = DistributedBatches(sink, provider, Progress(1), Cut(configured, 10, ""), None)
    distributed.use_parallelism(tasks)
    return distributed._intent(PLAN).slots


@pytest.mark.parametrize(
    ("count", "tasks", "configured", "wanted"),
    [
        (16, 2, 0, 4),
        (16, 1, 0, 2),
        (16, 8, 0, 16),
        (16, 100, 0, 16),
        (3, 2, 0, 3),
        (1, 2, 0, 1),
        (16, 2, 7, 7),
        (5, 2, 7, 5),
        (100, 2, 40, 40),
    ],
)
def test_slots_of_partitioned_sink_follow_tasks_up_to_its_maximum(
    count: int, tasks: int, configured: int, wanted: int
) -> None:
    assert slots(by_partition(count), tasks=tasks, configured=configured) == wanted


def test_slots_of_sink_with_fixed_slots_are_all_used() -> None:
    assert slots(ByTable(1), tasks=8) == 1
    assert slots(ByTable(1), tasks=8, configured=5) == 1
