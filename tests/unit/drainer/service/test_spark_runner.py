"""When a query that ended begins again, and when its error is the drainer's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from binlog.errors import PumpUnavailable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from drainer.apply.distributed import NotSpread
from drainer.pumps.range_count import RangeDiffers
from drainer.service.spark_runner import SPARK_FAILURES_MAX, SparkRun
from drainer.sink.errors import Fenced
from drainer.spark.errors import NodeLacks, SparkFailed


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


class Told:
    """Scheduler or pipeline, as far as it is told how many tasks run at once."""

    def __init__(self) -> None:
        self.tasks: list[int] = []

    def use_parallelism(self, tasks: int) -> None:
        self.tasks.append(tasks)


class Session:
    """Spark with executors that come and go."""

    def __init__(self, *cores: int | Exception) -> None:
        self._cores = list(cores)
        self.sparkContext = self

    @property
    def defaultParallelism(self) -> int:
        found = self._cores.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


async def test_the_number_of_tasks_follows_the_executors() -> None:
    """Those of a cluster register when the session runs already, and one that dies takes its processors along."""
    scheduler, pipeline = Told(), Told()
    run = SparkRun(None, None, 1, pipeline, scheduler, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    run._session = Session(2, 2, 16, Py4JError("the JVM is gone"), 12, 0)  # type: ignore[assignment]
    for _ in range(6):
        run._follow_executors()
    assert scheduler.tasks == pipeline.tasks == [2, 16, 12, 1]


async def test_after_every_batch_the_executors_are_looked_at() -> None:
    class Applied(Told):
        current = object()
        runs = 0

        def run(self, _plan: object, _feed: object) -> None:
            assert self.tasks == [], "between two batches alone"
            self.runs += 1

        def applied(self) -> None:
            pass

    both = Applied()
    run = SparkRun(None, None, 1, both, both, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    run._session = Session(7)  # type: ignore[assignment]
    run._batch(None)  # type: ignore[arg-type]
    assert (both.runs, both.tasks) == (1, [7, 7])


async def test_a_session_that_is_over_ends_the_drainer_with_both_reasons() -> None:
    """A master may end an application whose executors all failed."""

    class OverRun(CountedRun):
        def _start_query(self) -> None:
            raise Py4JError("Cannot call methods on a stopped SparkContext")

    run = OverRun(None, None, 1, StandingPipeline(), None, loop=asyncio.get_running_loop(), pause_s=0)  # type: ignore[arg-type]
    run._query_ended(SparkFailed("Master removed our application"))
    with pytest.raises(SparkFailed, match="Master removed our application; no other query can start: Cannot call"):
        await asyncio.wait_for(run.wait(), 5)


async def test_what_a_node_lacks_is_the_reason_even_if_another_failure_comes_last() -> None:
    pipeline = StandingPipeline()
    run = counted_run(pipeline)
    run._query_ended(NodeLacks("node a has no module drainer"))
    for _ in range(SPARK_FAILURES_MAX):
        run._query_ended(SparkFailed("java.lang.NullPointerException"))
    with pytest.raises(NodeLacks, match="node a has no module drainer"):
        await asyncio.wait_for(run.wait(), 5)


async def test_what_a_node_lacked_before_is_forgotten_with_progress() -> None:
    pipeline = StandingPipeline()
    run = counted_run(pipeline)
    run._query_ended(NodeLacks("node a has no module drainer"))
    pipeline.position_ts += 1
    for _ in range(SPARK_FAILURES_MAX + 1):
        run._query_ended(SparkFailed("busy"))
    with pytest.raises(SparkFailed, match="busy"):
        await asyncio.wait_for(run.wait(), 5)
