"""Warm-up: runs empty jobs like those of batches, so that the JVM loads its classes and Python workers start.

Without it the first batch takes a second longer, on a cluster as long as its executors need to start. It runs while the
query starts, which uses one of two processors.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from binlog.runtime.log import get_logger
from pyspark.sql import DataFrame, SparkSession

from drainer.spark.errors import SPARK_ERRORS
from drainer.spark.shuffle_apply import SLOT, shuffled
from drainer.spark.startup.node_requirements import TASK_WAIT_S, watched

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]

PACKED_DDL = "pump string, seq int, blob binary"
RESULT_DDL = "result binary"
POLL_S = 0.1

_log = get_logger(__name__)


def _packed(batches: Batches) -> Batches:
    """Packed dummy rows made from numbers."""
    from drainer.spark.source.executor import packed

    for batch in batches:
        numbers = [number % 4 for number in batch.column(0).to_pylist()]
        yield packed("", numbers, [bytes(1 << 10)] * len(numbers))


def _results(batches: Batches) -> Batches:
    for batch in batches:
        yield batch.select(["blob"]).rename_columns(["result"])


def packed_rows(numbers: DataFrame) -> DataFrame:
    """Return a packed dummy row for each number."""
    return numbers.mapInArrow(_packed, PACKED_DDL)


def run_both_modes(rows: DataFrame, tasks: int) -> None:
    """Run the Spark jobs of a batch in the driver and of a distributed one."""
    rows.toArrow()
    by_slot = shuffled(rows.repartitionById(2 * tasks, SLOT))
    by_slot.mapInArrow(_results, RESULT_DDL).toArrow()


class WarmUp:
    """Begins in the constructor, with so many `tasks` on the first executors. `finish` adds the others of a cluster."""

    def __init__(self, session: SparkSession, tasks: int) -> None:
        self._session = session
        self._jobs: list[threading.Thread] = []
        self._begin(tasks, TASK_WAIT_S)

    def finish(self, stopping: Callable[[], bool], wait_s: float = TASK_WAIT_S) -> None:
        """Return when every executor that has registered by then has run a task for each of its cores, or could not;
        also when `stopping` returns True, after `wait_s` seconds, and when Spark has ended."""
        context, until_s, executors = self._session.sparkContext, time.monotonic() + wait_s, 0
        with contextlib.suppress(*SPARK_ERRORS, OSError):
            while not stopping():
                registered = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # without the driver
                if registered > executors:
                    executors = registered
                    # Beside the jobs that run, which may wait for an executor that is starting Python.
                    self._begin(context.defaultParallelism, 0)
                elif executors and not any(job.is_alive() for job in self._jobs):
                    _log.info("the warm-up of the executors has ended", executors=executors)
                    return
                elif time.monotonic() > until_s:
                    _log.warning("executors are still starting", executors=executors, waited_s=wait_s)
                    return
                time.sleep(POLL_S)

    def _begin(self, tasks: int, wait_s: float) -> None:
        def run() -> None:
            with watched(self._session.sparkContext.master, wait_s):
                run_both_modes(packed_rows(self._session.range(0, 8 * tasks, numPartitions=tasks)), tasks)

        self._jobs.append(threading.Thread(target=run, name="warm up", daemon=True))
        self._jobs[-1].start()
