"""Runs Spark for the daemon: session, planner server and streaming query, controlled from the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from binlog.errors import BinlogError, PumpUnavailable
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import Outage, get_logger

from drainer.apply.distributed import NotDistributed
from drainer.apply.progress import Stopped
from drainer.config import Config
from drainer.pipeline import Pipeline
from drainer.pumps.watermark import RangeDiffers
from drainer.service.scheduler import Scheduler


class Applier:
    """Applies one batch while the next one is read: runs one piece of work after another in the order of `begin`, all
    on one thread, because Spark keeps data for every thread that calls it. After work that failed, no other begins
    until `reset`. No reference to finished work is left: Spark keeps a batch's files as long as one exists."""

    def __init__(self) -> None:
        self._last: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "apply")

    def begin(self, work: Callable[[], None], failed: Callable[[], None]) -> None:
        """Wait for the previous work and raise its error, if any; then begin this one. `failed`: called if this one
        raises.
        """
        self.wait()
        self._last = self._thread.submit(work)
        self._last.add_done_callback(lambda done: failed() if done.exception() is not None else None)

    def wait(self) -> None:
        """Wait until no work is running. Raises the error of the last work, at every call."""
        if self._last is not None:
            self._last.result()

    def reset(self) -> None:
        """Wait until no work is running, and forget its error."""
        if self._last is not None:
            self._last.exception()
        self._last = None


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainer.apply.batch_planner import PlannedBatch
    from drainer.spark.query import Query, SparkBatch
    from drainer.spark.source.planner import PlannerServer
    from drainer.spark.startup.jvm_launch import Opening

RESTART_PAUSE_S = 0.5
SPARK_FAILURES_MAX = 5

_log = get_logger(__name__)


@dataclass(eq=False)
class SparkRun:
    """Applies batches from `start` until `stop`, which closes `opening`. `wait` raises the first error that is not
    retried.

    Retried by a new query from the destination's position: a pump that fails during a pull (the next survey waits for
    it); a batch that must be applied in the driver; and, up to SPARK_FAILURES_MAX times at one position, a failure of
    Spark (on a busy machine a worker may call back too late) or a range whose binlogs differ from the plan (a late
    binlog is in the next plan).
    """

    config: Config
    opening: Opening
    cluster_id: int
    pipeline: Pipeline
    scheduler: Scheduler
    loop: asyncio.AbstractEventLoop
    pause_s: float = RESTART_PAUSE_S

    def __post_init__(self) -> None:
        self._ended: asyncio.Future[None] = self.loop.create_future()
        self._session: SparkSession | None = None
        self._planner: PlannerServer | None = None
        self._query: Query | None = None
        self._tasks = 0
        self._lacks: BaseException | None = None
        self._again: BaseException | None = None
        self._failed = False
        self._applier = Applier()
        self._spark_failures = 0
        self._spark_failed_at = -1
        self._retry_outage = Outage(_log, "the batch failed and is retried", "the retried batch was applied")

    async def start(self) -> bool:
        """Start Spark and the query. False if stopped before Spark ran. Raises SparkUnavailable."""
        try:
            await asyncio.to_thread(self._start)
        except Stopped:
            return False
        return True

    async def wait(self) -> None:
        """Wait until the query ends; raises the error of the batch or of the planner that ended it."""
        await asyncio.shield(self._ended)

    async def stop(self, batch_s: float) -> None:
        """Wait up to `batch_s` seconds for the batch in flight, then abandon it, which is as safe as a crash."""
        self.scheduler.stop()
        self.pipeline.stop()
        try:
            async with asyncio.timeout(batch_s):
                await asyncio.to_thread(self._stop_query)
        except TimeoutError:
            _log.warning("stopping without waiting longer for the running batch", waited_s=batch_s)
        await asyncio.to_thread(self._stop_rest)

    def _start(self) -> None:
        from drainer.spark.startup.node_requirements import warn_of_loopback

        warn_of_loopback(self.config.spark.master, self.config.syncer.to.hosts())
        self._session = self.opening.session()
        self._follow_executors()
        self._start_query()

    def _start_query(self) -> None:
        from drainer.spark.query import Query
        from drainer.spark.source.planner import PlannerServer

        assert self._session is not None
        self._close_planner()
        self._planner = PlannerServer(self.scheduler.for_query(), self.scheduler.tasks, self._fail)
        security = self.config.security
        options = {
            "packed": "true",
            "planner": self._planner.address,
            "planner-key": self._planner.key,
            "cluster-id": str(self.cluster_id),
            "start-ts": str(self.pipeline.position_ts),
            "ssl-ca": security.ssl_ca,
            "ssl-cert": security.ssl_cert,
            "ssl-key": security.ssl_key,
        }
        one_machine = self._session.sparkContext.master.startswith("local")
        self._query = Query(self._session, options=options, one_machine=one_machine)
        self._query.start(self._batch, self._query_ended)

    def _batch(self, until_ts: int, micro_batch: SparkBatch) -> None:
        """Handle the batches with which Spark calls this, one after another. A batch that was read ahead is applied
        while Spark goes on to the next one. Every other batch waits for the preceding one, and has been applied when
        this returns."""
        plan = self.scheduler.batches.planned(until_ts)
        if plan is None:
            if until_ts > self.pipeline.position_ts:
                raise BinlogError(f"Spark has a batch that ends at {until_ts}, where no batch is planned")
            _log.debug("Spark's first batch is empty")  # no plan at Spark's first request for an offset
            return
        micro_batch.covers(plan.after_ts, plan.until_ts)
        failure: BaseException | None = None
        try:
            self.pipeline.read(plan, micro_batch)
        except BaseException as error:  # noqa: BLE001  what the batch before it raised comes first
            failure = error
        else:
            crash_point("drainer.after_read")
        self._applier.wait()
        if failure is not None:
            if self.pipeline.stopping:
                failure = Stopped("stopped while a batch was read")
            self.pipeline.read_failed(failure)
            self._judge(failure)
            raise failure
        if plan.fold is None:
            self._apply(plan, micro_batch)
            return
        self.scheduler.batches.begun = plan
        # There may be no next batch, whose call would raise this batch's error and end the query.
        self._applier.begin(partial(self._apply, plan, micro_batch), self._query.stop if self._query else lambda: None)

    def _apply(self, plan: PlannedBatch, micro_batch: SparkBatch) -> None:
        try:
            self.pipeline.run(plan, micro_batch)
        except BaseException as error:
            self._judge(error)
            raise
        self._retry_outage.over()
        self.scheduler.applied()
        self._follow_executors()

    def _judge(self, error: BaseException) -> None:
        """Decide whether the error of a batch ends the query or the drainer."""
        if self._retryable(error):
            self._again = error
        else:
            self._fail(error)

    def _follow_executors(self) -> None:
        """Adapt between two batches to the executors of a cluster, which register and leave at any time."""
        from drainer.spark.errors import SPARK_ERRORS

        assert self._session is not None
        try:
            tasks = max(1, self._session.sparkContext.defaultParallelism)
        except (*SPARK_ERRORS, OSError):
            return  # the next batch raises the reason
        if tasks != self._tasks:
            self._tasks = tasks
            self.scheduler.use_parallelism(tasks)
            self.pipeline.use_parallelism(tasks)
            _log.info("concurrent tasks available", tasks=tasks)

    def _retryable(self, error: BaseException | None) -> bool:
        """Return whether a new query from the destination's position may succeed."""
        from drainer.spark.errors import NodeLacks, SparkFailed

        if isinstance(error, PumpUnavailable | NotDistributed):
            return True
        if not isinstance(error, SparkFailed | RangeDiffers):
            return False
        position_ts = self.pipeline.position_ts
        if position_ts != self._spark_failed_at:
            self._lacks = None
        if isinstance(error, NodeLacks):
            self._lacks = error
        self._spark_failures = self._spark_failures + 1 if position_ts == self._spark_failed_at else 1
        self._spark_failed_at = position_ts
        return self._spark_failures <= SPARK_FAILURES_MAX

    def _query_ended(self, error: BaseException | None) -> None:
        self._applier.reset()  # work that continues after its query has ended may still report its result
        again, self._again = self._again, None
        if again is None and not self._failed and self._retryable(error):
            again = error
        if again is None or self.pipeline.stopping:
            self._fail(error)
            return
        self._retry_outage.failed(error=str(again))
        if not isinstance(again, NotDistributed):  # NotDistributed is no failure: the next plan is a different one
            time.sleep(self.pause_s)
        from drainer.spark.errors import SPARK_ERRORS, SparkFailed, reason_of, text_of

        try:
            self._start_query()
        except (*SPARK_ERRORS, OSError) as another:  # the session has ended, e.g. by the cluster
            self._fail(SparkFailed(f"{again}; no other query can start: {reason_of(text_of(another))}"))
            return
        except BaseException as another:
            self._fail(another)
            raise
        if self.pipeline.stopping:  # stopped meanwhile: `stop` does not know this query
            self._stop_query()
            self._close_planner()

    def _fail(self, error: BaseException | None) -> None:
        """End `wait` with the first error; Stopped is not an error."""
        from drainer.spark.errors import NodeLacks, SparkFailed, WorkerNotStarted

        self._failed = True
        if isinstance(error, SparkFailed) and self._lacks is not None:
            error = self._lacks  # an earlier attempt at the same batch failed for this reason
        elif isinstance(error, WorkerNotStarted):
            lacks = self.opening.node_lacks()
            error = error if lacks is None else NodeLacks(lacks)

        def settle() -> None:
            if self._ended.done():
                return
            if error is None or isinstance(error, Stopped):
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

        self.loop.call_soon_threadsafe(settle)

    def _stop_query(self) -> None:
        if self._query is not None:
            with self.pipeline.quiet():
                self._query.stop()

    def _close_planner(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _stop_rest(self) -> None:
        self._close_planner()
        self.opening.close()
