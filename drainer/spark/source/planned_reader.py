"""The stream reader of the drainer itself, and the task it plans.

It imports little: Spark makes a reader in three processes of a query before the first task runs, and each of them
executes these imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from binlog.runtime.security import Security
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from drainer.apply.fold_order import ReadOrder
from drainer.pumps.watermark import PumpRange
from drainer.spark.blob_files import folder_of
from drainer.spark.errors import ErrorSeal
from drainer.spark.source.options import SourceOptions
from drainer.spark.source.planner_client import PlannerLine

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, int]
UNSEALED = ErrorSeal()


@dataclass(frozen=True)
class PullTask(InputPartition):  # type: ignore[misc]  # mypy does not follow pyspark
    """One task's ranges, pulled one after another. Picklable; holds no connection. With `fold` the task yields one row
    for each slot instead of one for each message: `seq` is the slot, `blob` its rows (drainer.order.blob). If there is
    a `folder`, the rows are written to a file in it."""

    ranges: tuple[PumpRange, ...]
    cluster_id: int
    security: Security
    packed: bool
    fold: ReadOrder | None = None
    errors: ErrorSeal = UNSEALED
    folder: str = ""


class PlannedReader(DataSourceStreamReader):  # type: ignore[misc]  # mypy does not follow pyspark
    """The drainer's own stream reader: its scheduler decides where a batch ends and which task pulls which ranges."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._line: PlannerLine | None = None

    def initialOffset(self) -> Offset:
        return {"commit_ts": self._options.start_ts}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return {"commit_ts": self._planner().next_until(start["commit_ts"])}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        tasks, fold = self._planner().tasks(start["commit_ts"], end["commit_ts"])
        options = self._options
        errors = ErrorSeal(options.error_secret)
        folder = folder_of(options.blob_folder, start["commit_ts"], end["commit_ts"]) if fold is not None else ""
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        cluster_id, security, packed = options.cluster_id, options.security, options.packed
        return [PullTask(task, cluster_id, security, packed, fold, errors, folder) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PullTask)
        # imported here because it imports much, and only executors need it
        from drainer.spark.source.executor import read_task

        return read_task(partition)

    def stop(self) -> None:
        if self._line is not None:
            self._line.close()

    def _planner(self) -> PlannerLine:
        if self._line is None:
            self._line = PlannerLine(self._options.planner, self._options.planner_key)
        return self._line
