"""When a query that ended begins again, and when its error is the drainer's."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from binlog.errors import BinlogError, PumpUnavailable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import NotDistributed
from drainer.apply.fold_order import FoldOrder, PackedView
from drainer.apply.progress import Stopped
from drainer.pumps.watermark import RangeDiffers
from drainer.service.scheduler import PlannedBatches
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


async def test_query_restarts_a_few_times_after_spark_failures() -> None:
    """A worker that was late to call back once ended the drainer."""
    run = counted_run(StandingPipeline())
    for _ in range(SPARK_FAILURES_MAX):
        run._query_ended(SparkFailed("Python worker failed to connect back"))
    assert run.started == SPARK_FAILURES_MAX
    run._query_ended(SparkFailed("Python worker failed to connect back"))
    with pytest.raises(SparkFailed, match="connect back"):
        await asyncio.wait_for(run.wait(), 60)
    assert run.started == SPARK_FAILURES_MAX


async def test_spark_failure_count_is_reset_by_progress() -> None:
    pipeline = StandingPipeline()
    run = counted_run(pipeline)
    for ts in range(20, 20 + 3 * SPARK_FAILURES_MAX):
        pipeline.position_ts = ts
        run._query_ended(SparkFailed("busy"))
    assert run.started == 3 * SPARK_FAILURES_MAX


async def test_query_restarts_without_limit_after_pump_unavailable() -> None:
    run = counted_run(StandingPipeline())
    for _ in range(10):
        run._query_ended(PumpUnavailable("pump-1 is gone"))
    assert run.started == 10


async def test_query_restarts_for_batch_that_must_run_in_driver() -> None:
    run = counted_run(StandingPipeline())
    run._query_ended(NotDistributed("two rows of d.t hold one value of (u)"))
    assert run.started == 1


async def test_fatal_error_ends_run_in_spite_of_later_spark_failures() -> None:
    """What Spark says of a batch that failed on its own account does not begin it again."""
    run = counted_run(StandingPipeline())
    run._fail(Fenced("another drainer took over"))
    run._query_ended(SparkFailed("foreachBatch raised"))
    with pytest.raises(Fenced):
        await asyncio.wait_for(run.wait(), 60)
    assert run.started == 0


async def test_differing_range_is_replanned_a_few_times_and_then_fatal() -> None:
    """A late commit is in the next plan; a pump that does not serve what it has is not mended by asking (rule 22)."""
    run = counted_run(StandingPipeline())
    for _ in range(SPARK_FAILURES_MAX + 1):
        run._query_ended(RangeDiffers("pump a: 2 planned, 1 came"))
    with pytest.raises(RangeDiffers):
        await asyncio.wait_for(run.wait(), 60)
    assert run.started == SPARK_FAILURES_MAX


async def test_query_does_not_restart_while_stopping() -> None:
    run = counted_run(StandingPipeline(stopping=True))
    run._query_ended(SparkFailed("interrupted"))
    assert run.started == 0


class Feed:
    """A batch of Spark's, as far as it is told what it is of."""

    covered: tuple[int, int] | None = None

    def covers(self, after_ts: int, until_ts: int) -> None:
        self.covered = after_ts, until_ts


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


async def test_number_of_tasks_follows_executors() -> None:
    """Those of a cluster register when the session runs already, and one that dies takes its processors along."""
    scheduler, pipeline = Told(), Told()
    run = SparkRun(None, None, 1, pipeline, scheduler, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    run._session = Session(2, 2, 16, Py4JError("the JVM is gone"), 12, 0)  # type: ignore[assignment]
    for _ in range(6):
        run._follow_executors()
    assert scheduler.tasks == pipeline.tasks == [2, 16, 12, 1]


async def test_executors_are_counted_after_every_batch() -> None:
    class Applied(Told):
        runs = 0
        batches = PlannedBatches()

        def read(self, _plan: object, _feed: object) -> None:
            pass

        def run(self, _plan: object, _feed: object) -> None:
            assert self.tasks == [], "between two batches alone"
            self.runs += 1

        def applied(self) -> None:
            pass

    both = Applied()
    both.batches.plan(PlannedBatch(1, 2, Mode.DRIVER, (), 1), 1)
    run = SparkRun(None, None, 1, both, both, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    run._session = Session(7)  # type: ignore[assignment]
    feed = Feed()
    run._batch(2, feed)  # type: ignore[arg-type]
    assert (both.runs, both.tasks) == (1, [7, 7])
    assert feed.covered == (1, 2), "its files would never be removed"


async def test_batch_with_no_plan_is_skipped_at_the_position_and_an_error_behind_it() -> None:
    class AtFive(Told):
        position_ts = 5
        batches = PlannedBatches()

    both = AtFive()
    run = SparkRun(None, None, 1, both, both, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    run._batch(5, Feed())  # type: ignore[arg-type]
    with pytest.raises(BinlogError, match="a batch that ends at 6, where no batch is planned"):
        run._batch(6, Feed())  # type: ignore[arg-type]


async def test_stopped_spark_session_ends_run_with_both_reasons() -> None:
    """A master may end an application whose executors all failed."""

    class OverRun(CountedRun):
        def _start_query(self) -> None:
            raise Py4JError("Cannot call methods on a stopped SparkContext")

    run = OverRun(None, None, 1, StandingPipeline(), None, loop=asyncio.get_running_loop(), pause_s=0)  # type: ignore[arg-type]
    run._query_ended(SparkFailed("Master removed our application"))
    with pytest.raises(SparkFailed, match="Master removed our application; no other query can start: Cannot call"):
        await asyncio.wait_for(run.wait(), 60)


async def test_missing_module_on_node_is_reported_as_reason() -> None:
    pipeline = StandingPipeline()
    run = counted_run(pipeline)
    run._query_ended(NodeLacks("node a has no module drainer"))
    for _ in range(SPARK_FAILURES_MAX):
        run._query_ended(SparkFailed("java.lang.NullPointerException"))
    with pytest.raises(NodeLacks, match="node a has no module drainer"):
        await asyncio.wait_for(run.wait(), 60)


async def test_missing_module_on_node_is_forgotten_after_progress() -> None:
    pipeline = StandingPipeline()
    run = counted_run(pipeline)
    run._query_ended(NodeLacks("node a has no module drainer"))
    pipeline.position_ts += 1
    for _ in range(SPARK_FAILURES_MAX + 1):
        run._query_ended(SparkFailed("busy"))
    with pytest.raises(SparkFailed, match="busy"):
        await asyncio.wait_for(run.wait(), 60)


# --- a batch is read while the one before it is applied ---------------------------------------------------------------

WAIT_S = 60
FOLD = FoldOrder(PackedView("view", b""), "mysql", 4)


class Gates(Told):
    """Scheduler and pipeline of batches whose reading and applying the test lets go on, or fail. `log`: what happened,
    `open`: what may end, each as "read 2" or "apply 2"."""

    def __init__(self) -> None:
        super().__init__()
        self.position_ts, self.stopping = 0, False
        self.batches = PlannedBatches()
        self.log: list[str] = []
        self.begun: list[PlannedBatch | None] = []
        self.shown: list[BaseException] = []
        self._changed = threading.Condition()
        self._open: dict[str, BaseException | None] = {}

    def open(self, what: str, error: BaseException | None = None) -> None:
        with self._changed:
            self._open[what] = error
            self._changed.notify_all()

    def read(self, plan: PlannedBatch, _feed: object) -> None:
        if plan.fold is not None:
            self._pass(f"read {plan.until_ts}")

    def run(self, plan: PlannedBatch, _feed: object) -> None:
        self._pass(f"apply {plan.until_ts}")
        self.position_ts = plan.until_ts

    def read_failed(self, error: BaseException) -> None:
        self.shown.append(error)

    def applied(self) -> None:
        self.begun.append(self.batches.begun)
        self.batches.begun = None
        self._say("applied")

    def seen(self, what: str, times: int = 1) -> None:
        """Wait until it was logged."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.log.count(what) >= times, WAIT_S), (what, self.log)

    def _pass(self, what: str) -> None:
        self._say(f"begin {what}")
        with self._changed:
            assert self._changed.wait_for(lambda: what in self._open, WAIT_S), what
        error = self._open[what]
        self._say(f"end {what}")
        if error is not None:
            raise error

    def _say(self, what: str) -> None:
        with self._changed:
            self.log.append(what)
            self._changed.notify_all()


class StoppedQuery:
    """Tells whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


class Batches:
    """What Spark does: it calls for one batch after another on a thread, and ends the query with the first error."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self.run = CountedRun(None, None, 1, gates, gates, loop=asyncio.get_running_loop(), pause_s=0)  # type: ignore[arg-type]
        self.run._session = Session(*([2] * 20))  # type: ignore[assignment]
        self.query = self.run._query = StoppedQuery()  # type: ignore[assignment]
        self._pool = ThreadPoolExecutor(1)

    def call(self, until_ts: int, *, distributed: bool = True) -> Future[None]:
        mode = Mode.DISTRIBUTED if distributed else Mode.DRIVER
        plan = PlannedBatch(until_ts - 1, until_ts, mode, (), 1, fold=FOLD if distributed else None)
        self.gates.batches.plan(plan, self.gates.position_ts)
        return self._pool.submit(self.run._batch, until_ts, Feed())  # type: ignore[arg-type]


async def first_batch_read() -> tuple[Gates, Batches]:
    """The first batch has been read; it may not be applied yet."""
    gates = Gates()
    batches = Batches(gates)
    gates.open("read 1")
    await asyncio.wrap_future(batches.call(1))
    return gates, batches


async def test_batch_is_read_while_the_one_before_is_applied() -> None:
    gates, batches = await first_batch_read()
    second = batches.call(2)
    await asyncio.to_thread(gates.seen, "begin apply 1")
    await asyncio.to_thread(gates.seen, "begin read 2")
    gates.open("read 2")
    await asyncio.to_thread(gates.seen, "end read 2")
    assert not second.done() and "begin apply 2" not in gates.log
    gates.open("apply 1")
    await asyncio.wrap_future(second)
    gates.open("apply 2")
    await asyncio.to_thread(gates.seen, "end apply 2")
    assert gates.log.index("applied") < gates.log.index("begin apply 2")
    await asyncio.to_thread(gates.seen, "applied", 2)
    assert [plan.until_ts for plan in gates.begun if plan] == [1, 2]


async def test_batch_in_driver_waits_for_the_one_before_and_completes() -> None:
    """A DDL is in it, for one."""
    gates, batches = await first_batch_read()
    in_driver = batches.call(2, distributed=False)
    await asyncio.to_thread(gates.seen, "begin apply 1")
    assert "begin apply 2" not in gates.log
    gates.open("apply 1")
    await asyncio.to_thread(gates.seen, "begin apply 2")
    assert gates.position_ts == 1 and not in_driver.done()
    gates.open("apply 2")
    await asyncio.wrap_future(in_driver)
    assert gates.position_ts == 2


async def test_batch_after_failed_one_is_not_applied() -> None:
    """Its own error begins it again, not that of the batch that was read behind it."""
    gates, batches = await first_batch_read()
    second = batches.call(2)
    await asyncio.to_thread(gates.seen, "begin read 2")
    gates.open("apply 1", PumpUnavailable("pump-1 is gone"))
    gates.open("read 2", SparkFailed("the job was cancelled"))
    with pytest.raises(PumpUnavailable):
        await asyncio.wrap_future(second)
    assert "begin apply 2" not in gates.log and gates.position_ts == 0
    assert gates.shown == [], "the status page has the reason, not what followed from it"
    batches.run._query_ended(SparkFailed("foreachBatch raised"))
    assert batches.run.started == 1
    # The next query begins with the batch that failed.
    gates.open("apply 1")
    await asyncio.wrap_future(batches.call(1))
    await asyncio.to_thread(gates.seen, "applied")
    assert gates.position_ts == 1


async def test_failed_batch_without_next_one_stops_query() -> None:
    gates, batches = await first_batch_read()
    assert not batches.query.stopped.is_set()
    gates.open("apply 1", PumpUnavailable("pump-1 is gone"))
    assert await asyncio.to_thread(batches.query.stopped.wait, WAIT_S)
    batches.run._query_ended(None)
    assert batches.run.started == 1


async def test_fatal_error_of_batch_before_ends_run() -> None:
    gates = Gates()
    batches = Batches(gates)
    gates.open("read 1")
    gates.open("read 2")
    gates.open("apply 1", Fenced("another drainer took over"))
    await asyncio.wrap_future(batches.call(1))
    with pytest.raises(Fenced):
        await asyncio.wrap_future(batches.call(2))
    batches.run._query_ended(SparkFailed("foreachBatch raised"))
    with pytest.raises(Fenced):
        await asyncio.wait_for(batches.run.wait(), WAIT_S)
    assert batches.run.started == 0 and "begin apply 2" not in gates.log


async def test_read_error_is_raised_after_batch_before_is_applied() -> None:
    """Else the next query would begin with a batch that is still being applied."""
    gates, batches = await first_batch_read()
    gates.open("read 2", NotDistributed("an unknown column"))
    second = batches.call(2)
    await asyncio.to_thread(gates.seen, "end read 2")
    assert not second.done()
    gates.open("apply 1")
    with pytest.raises(NotDistributed):
        await asyncio.wrap_future(second)
    assert gates.position_ts == 1 and [type(error) for error in gates.shown] == [NotDistributed]
    batches.run._query_ended(SparkFailed("foreachBatch raised"))
    assert batches.run.started == 1


async def test_ended_query_restarts_after_applying_batch() -> None:
    """The next one begins at the position, which is not known before."""
    gates, batches = await first_batch_read()
    ended = asyncio.create_task(asyncio.to_thread(batches.run._query_ended, SparkFailed("the reader died")))
    await asyncio.to_thread(gates.seen, "begin apply 1")
    assert batches.run.started == 0
    gates.open("apply 1")
    await asyncio.wait_for(ended, WAIT_S)
    assert (batches.run.started, gates.position_ts) == (1, 1)


async def test_cancelled_read_while_stopping_is_not_error() -> None:
    gates, batches = await first_batch_read()
    second = batches.call(2)
    await asyncio.to_thread(gates.seen, "begin read 2")
    gates.stopping = True
    gates.open("apply 1")
    gates.open("read 2", SparkFailed("the job was cancelled"))
    with pytest.raises(Stopped):
        await asyncio.wrap_future(second)
    await asyncio.wait_for(batches.run.wait(), WAIT_S)
    assert gates.position_ts == 1


class GoneQuery:
    """Its JVM has ended."""

    def stop(self) -> None:
        raise ConnectionRefusedError("the JVM is gone")


async def test_failed_stop_of_query_does_not_stop_next_one() -> None:
    """Else the next query's first batch would wait for ever."""
    gates = Gates()
    batches = Batches(gates)
    batches.run._query = GoneQuery()  # type: ignore[assignment]
    gates.open("read 1")
    gates.open("apply 1", PumpUnavailable("pump-1 is gone"))
    await asyncio.wrap_future(batches.call(1))
    batches.run._query_ended(SparkFailed("foreachBatch raised"))
    assert batches.run.started == 1
    gates.open("apply 1")
    await asyncio.wrap_future(batches.call(1))
    await asyncio.to_thread(gates.seen, "applied")
    assert gates.position_ts == 1
