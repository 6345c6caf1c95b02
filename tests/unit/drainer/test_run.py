"""When a query that ended begins again, and when its error is the drainer's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from binlog.errors import PumpUnavailable

from drainer.pumps.count import RangeDiffers
from drainer.run import SPARK_FAILURES_MAX, SparkRun
from drainer.sink.errors import Fenced
from drainer.spark.errors import SparkFailed
from drainer.spreading import NotSpread


@dataclass
class StandingPipeline:
    """Only what SparkRun asks between two queries."""

    position_ts: int = 10
    stopping: bool = False


class CountedRun(SparkRun):
    """Counts the queries it would start."""

    started = 0

    def _start_query(self) -> None:
        self.started += 1


def counted_run(pipeline: StandingPipeline) -> CountedRun:
    loop = asyncio.get_running_loop()
    return CountedRun(None, None, 1, pipeline, None, loop=loop, pause_s=0)  # type: ignore[arg-type]


async def test_spark_s_own_failure_begins_again_a_few_times() -> None:
    """A worker that was late to call back once ended the drainer."""
    run = counted_run(StandingPipeline())
    for _ in range(SPARK_FAILURES_MAX):
        run._query_ended(SparkFailed("Python worker failed to connect back"))
    assert run.started == SPARK_FAILURES_MAX
    run._query_ended(SparkFailed("Python worker failed to connect back"))
    with pytest.raises(SparkFailed, match="connect back"):
        await asyncio.wait_for(run.wait(), 60)
    assert run.started == SPARK_FAILURES_MAX


async def test_progress_in_between_forgives() -> None:
    pipeline = StandingPipeline()
    run = counted_run(pipeline)
    for ts in range(20, 20 + 3 * SPARK_FAILURES_MAX):
        pipeline.position_ts = ts
        run._query_ended(SparkFailed("busy"))
    assert run.started == 3 * SPARK_FAILURES_MAX


async def test_a_pump_begins_again_without_bound() -> None:
    run = counted_run(StandingPipeline())
    for _ in range(10):
        run._query_ended(PumpUnavailable("pump-1 is gone"))
    assert run.started == 10


async def test_a_batch_that_must_go_inline_begins_again() -> None:
    run = counted_run(StandingPipeline())
    run._query_ended(NotSpread("two rows of d.t hold one value of (u)"))
    assert run.started == 1


async def test_an_error_that_counts_ends_it_once_and_for_all() -> None:
    """What Spark says of a batch that failed on its own account does not begin it again."""
    run = counted_run(StandingPipeline())
    run._fail(Fenced("another drainer took over"))
    run._query_ended(SparkFailed("foreachBatch raised"))
    with pytest.raises(Fenced):
        await asyncio.wait_for(run.wait(), 60)
    assert run.started == 0


async def test_a_range_that_differs_is_planned_anew_and_ends_it_where_that_does_not_help() -> None:
    """A late commit is in the next plan; a pump that does not serve what it has is not mended by asking (rule 22)."""
    run = counted_run(StandingPipeline())
    for _ in range(SPARK_FAILURES_MAX + 1):
        run._query_ended(RangeDiffers("pump a: 2 planned, 1 came"))
    with pytest.raises(RangeDiffers):
        await asyncio.wait_for(run.wait(), 60)
    assert run.started == SPARK_FAILURES_MAX


async def test_nothing_begins_while_stopping() -> None:
    run = counted_run(StandingPipeline(stopping=True))
    run._query_ended(SparkFailed("interrupted"))
    assert run.started == 0
