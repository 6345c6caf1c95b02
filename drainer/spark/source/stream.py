"""The readers of the data source "binlog" used without the drainer. Offsets are commit_ts; partitions are ranges of
pumps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from binlog.cluster import tso
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry
from binlog.cluster.timestamp import cluster_id
from binlog.runtime.fields import UpstreamSection
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from drainer.pumps.survey import HeldBack, PumpSet, dial_with
from drainer.pumps.watermark import BatchLimits, PumpRange, Watermark, ranges_of
from drainer.spark.source.data_source import SourceOptions, one_line_errors
from drainer.spark.source.executor import Offset, PullTask, read_task
from drainer.ticdc.tables import TopicHistory

# The pumps for a data source that runs on its own: a PumpSet on an event loop in a thread.

T = TypeVar("T")
HELD_BACK_S = 30.0
PAUSE_S = 0.2
# A stream of a Go pump from which nothing came for so long has sent what the pump holds.
QUIET_S = 1.0
CATCH_UP_S = 120.0


class Pumps:
    """The pumps' clients, connected from construction until `close`. `survey` waits for some time for a pump that does
    not answer.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pumps", daemon=True)
        self._thread.start()
        self.cluster_id, self.etcd, self._set = self.run(_connect(options))

    def survey(self, after_ts: int, limits: BatchLimits) -> Watermark:
        """Raises HeldBack after HELD_BACK_S, and what PumpSet.survey raises."""
        return self.run(self._patiently(after_ts, limits))

    def survey_everything(self, after_ts: int, limits: BatchLimits, *, end_ts: int = 0) -> Watermark:
        """Return the survey for a query that reads everything the pumps hold when it is planned. `end_ts`: the end of
        the query's range, 0 for none. A Go pump has no watermark call: its watermark is the last binlog received, and
        its stream has just been opened. So this waits until Go pumps have sent what they hold, for at most CATCH_UP_S.
        Raises what `survey` raises."""
        enough_ts = tso.compose(int(time.time() * 1000))
        if end_ts:
            enough_ts = min(enough_ts, end_ts)
        until_s = time.monotonic() + CATCH_UP_S

        async def pause() -> bool:
            await asyncio.sleep(QUIET_S)
            return time.monotonic() < until_s

        return self.run(caught_up(lambda: self._patiently(after_ts, limits), pause, enough_ts=enough_ts))

    def counted(self, part: PumpRange) -> PumpRange:
        """Return the range with the counts that its pull must return (rule 22), from a pump that answered the last
        survey. Raises HeldBack.
        """
        if part.planned is not None:
            return part
        return replace(part, planned=self.run(self._set.count(part)))

    def close(self) -> None:
        self.run(self._set.close())
        if self.etcd is not None:
            self.run(self.etcd.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _patiently(self, after_ts: int, limits: BatchLimits) -> Watermark:
        end = self._loop.time() + HELD_BACK_S
        while True:
            try:
                return await self._set.survey(after_ts=after_ts, limits=limits)
            except HeldBack:
                if self._loop.time() > end:
                    raise
            await asyncio.sleep(PAUSE_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop of the pumps' clients; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def caught_up(
    survey: Callable[[], Awaitable[Watermark]], pause: Callable[[], Awaitable[bool]], *, enough_ts: int
) -> Watermark:
    """Return the first survey whose watermark has reached `enough_ts` or did not rise during a `pause`, or the last one
    when `pause` returns False. Without Go pumps, return the first survey."""
    found = await survey()
    while found.ts < enough_ts and not all(mark.extension for mark in found.marks) and await pause():
        before, found = found, await survey()
        if found.ts == before.ts:
            break
    return found


async def _connect(options: SourceOptions) -> tuple[int, Any, PumpSet]:
    if options.source:
        return 0, None, _partitions(options)
    etcd = connect_etcd(options.pd_urls, options.security)
    identifier = options.cluster_id
    if not identifier:
        section = UpstreamSection.model_validate(
            {"pd-urls": ",".join(options.pd_urls), "tso-source": options.tso_source, "pd-addr": options.pd_addr}
        )
        identifier = await cluster_id(etcd, section, options.security)
    return identifier, etcd, PumpSet(Registry(etcd), dial_with(identifier, options.security))


def _partitions(options: SourceOptions) -> PumpSet:
    """Return TiCDC's partitions in place of pumps. Raises ConfigError."""
    from drainer.ticdc.partition import Partitions, source_address  # loads the client library

    history = TopicHistory(options.job_sources(None))
    partitions = Partitions(source_address(options.source, {}), options.source_topics, history)
    return PumpSet(partitions, partitions.dial)


PIECES = 2


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # mypy does not follow pyspark
    """The stream reader of the source used without the drainer. It queries the pumps itself."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pumps: Pumps | None = None
        self._target_ts: int | None = None
        self._newest_ts = 0  # of the last survey

    @one_line_errors
    def initialOffset(self) -> Offset:
        return {"commit_ts": self._options.start_ts}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.batch_bytes_max)

    @one_line_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        after_ts = start["commit_ts"]
        if self._target_ts is not None and after_ts >= self._target_ts:
            return start  # pumps need not answer any more
        watermark = self._survey(after_ts, _limits(limit))
        self._newest_ts = watermark.ts
        until_ts = min(watermark.ts, watermark.end_ts)
        if self._target_ts is not None:
            until_ts = min(until_ts, self._target_ts)
        return {"commit_ts": max(after_ts, until_ts)}

    def reportLatestOffset(self) -> Offset | None:
        """Return the `latestOffset` of a query's progress: the watermark when its last micro-batch was planned."""
        return {"commit_ts": self._newest_ts} if self._newest_ts else None

    @one_line_errors
    def prepareForTriggerAvailableNow(self) -> None:
        watermark = self._connected().survey_everything(self._options.start_ts, BatchLimits(1))
        self._target_ts = self._newest_ts = watermark.ts

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

    _surveyed = BatchLimits(1 << 40)

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @one_line_errors
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        pumps = Pumps(options)
        try:
            watermark = pumps.survey_everything(options.start_ts, self._surveyed, end_ts=options.end_ts)
            until_ts = min(watermark.ts, options.end_ts) if options.end_ts else watermark.ts
            return self._tasks(pumps, watermark, until_ts) if until_ts > options.start_ts else []
        finally:
            pumps.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def _tasks(self, pumps: Pumps, watermark: Watermark, until_ts: int) -> list[InputPartition]:
        """Return the tasks that read (start-ts, until_ts], which is not empty."""
        return _tasks(watermark, pumps, self._options, self._options.start_ts, until_ts)


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
