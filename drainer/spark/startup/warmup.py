"""Warm-up: runs empty jobs like those of batches, so that the JVM loads its classes and Python workers start.

Without it the first batch takes a second longer. It runs while the query starts, which uses one of two processors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from drainer.spark.shuffle_apply import SLOT, shuffled
from drainer.spark.startup.node_requirements import watched

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]

PACKED_DDL = "pump string, seq int, blob binary"
RESULT_DDL = "result binary"


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


def warm_up(session: SparkSession, tasks: int) -> None:
    """Run in a background thread; `tasks`: number of partitions."""

    def run() -> None:
        with watched(session.sparkContext.master):
            run_both_modes(packed_rows(session.range(0, 8 * tasks, numPartitions=tasks)), tasks)

    threading.Thread(target=run, name="warm up", daemon=True).start()
