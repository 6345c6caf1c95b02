"""The readers of the data source "binlog" used without the drainer. Offsets are commit_ts; partitions are ranges of
pumps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from drainer.pumps.watermark import BatchLimits, Watermark, ranges_of
from drainer.spark.source.executor import read_task
from drainer.spark.source.options import SourceOptions, one_line_errors
from drainer.spark.source.planned_reader import Offset, PullTask
from drainer.spark.source.pump_set import Pumps

PIECES = 2


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy does not follow pyspark
    """The stream reader of the source used without the drainer. It queries the pumps itself."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pumps: Pumps | None = None
        self._target_ts: int | None = None

    @one_line_errors
    def initialOffset(self) -> Offset:
        return {"commit_ts": self._options.start_ts}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.batch_bytes_max)

    @one_line_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        after_ts = start["commit_ts"]
        watermark = self._survey(after_ts, _limits(limit))
        until_ts = min(watermark.ts, watermark.end_ts)
        if self._target_ts is not None:
            until_ts = min(until_ts, self._target_ts)
        return {"commit_ts": max(after_ts, until_ts)}

    @one_line_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target_ts = self._connected().survey_everything(self._options.start_ts, BatchLimits(1)).ts

    @one_line_errors
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        after_ts, until_ts = start["commit_ts"], end["commit_ts"]
        return self._tasks(after_ts, until_ts) if until_ts > after_ts else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def stop(self) -> None:
        if self._pumps is not None:
            self._pumps.close()

    def _survey(self, after_ts: int, limits: BatchLimits) -> Watermark:
        """Return the watermark of a micro-batch that begins after `after_ts`."""
        return self._connected().survey(after_ts, limits)

    def _tasks(self, after_ts: int, until_ts: int) -> list[InputPartition]:
        """Return the tasks that read (after_ts, until_ts], which is not empty."""
        pumps = self._connected()
        watermark = pumps.survey(after_ts, BatchLimits(self._options.batch_bytes_max))
        return _tasks(watermark, pumps, self._options, after_ts, until_ts)

    def _connected(self) -> Pumps:
        if self._pumps is None:
            self._pumps = Pumps(self._options)
        return self._pumps


class BatchReader(DataSourceReader):  # type: ignore[misc]  # mypy does not follow pyspark
    """The reader of `spark.read.format("binlog")`: everything in (start-ts, end-ts]."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @one_line_errors
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        pumps = Pumps(options)
        try:
            watermark = pumps.survey_everything(options.start_ts, BatchLimits(1 << 40), end_ts=options.end_ts)
            until_ts = min(watermark.ts, options.end_ts) if options.end_ts else watermark.ts
            if until_ts <= options.start_ts:
                return []
            return _tasks(watermark, pumps, options, options.start_ts, until_ts)
        finally:
            pumps.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one partition. For a range without partitions Spark calls this once with an empty partition of its own."""
    return read_task(partition) if isinstance(partition, PullTask) else iter(())


def _limits(limit: ReadLimit) -> BatchLimits:
    """Return the limits of a batch. Each row is a binlog. Other limits do not apply to this source."""
    max_bytes, max_rows = getattr(limit, "max_bytes", 0), getattr(limit, "max_rows", 0)
    return BatchLimits(1 << 40) if isinstance(limit, ReadAllAvailable) else BatchLimits(max_bytes, max_rows)


def _tasks(
    watermark: Watermark, pumps: Pumps, options: SourceOptions, after_ts: int, until_ts: int
) -> list[InputPartition]:
    return [
        PullTask((pumps.counted(part),), pumps.cluster_id, options.security, options.packed)
        for mark in watermark.marks
        for part in ranges_of(mark, after_ts=after_ts, until_ts=until_ts, pieces_max=PIECES)
    ]
