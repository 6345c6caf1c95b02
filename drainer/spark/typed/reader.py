"""Spark readers of the typed change stream.

A task reads one range of commit_ts from all pumps and merges it, so that its changes are in upstream's order and a
transaction that two pumps hold is returned once (correctness rule 19).
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
from binlog.errors import BinlogError
from binlog.runtime.config import load
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security
from binlog.tidb.table import TableInfo
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from drainer.pumps.pull import pull_binlogs
from drainer.pumps.watermark import BatchLimits, PumpRange, Watermark, ranges_of
from drainer.row.codec import in_order
from drainer.row.transaction import Scanned, scan
from drainer.schema.errors import HistoryUnavailable
from drainer.schema.history.base import JobHistory, JobSource, Name, Watched, watch
from drainer.spark.source.data_source import SourceOptions
from drainer.spark.source.executor import UNSEALED
from drainer.spark.source.stream import BatchReader, Pumps, StreamReader
from drainer.spark.typed.fields import Fields, Reading, StreamRules, change_schema, changelog_schema, chosen, fields_of
from drainer.spark.typed.rows import Changes

_log = get_logger(__name__)

# DDL history of a change stream: read at the start of the query and again when rows may need newer jobs.
FINISH_WAIT_S = 60.0  # for the job of a column that a status port already shows as public


class TableHistory:
    """After `refresh`, `watched` includes every DDL that affects rows written before the call."""

    def __init__(self, sources: Sequence[JobSource], wanted: Sequence[Name]) -> None:
        self._sources = tuple(sources)
        self._wanted = tuple(wanted)
        self._history = JobHistory()
        self.watched = watch(self._history, self._wanted)

    def describe(self) -> str:
        return ", ".join(source.describe() for source in self._sources)

    async def refresh(self) -> Watched:
        """Read new jobs. Raises HistoryBroken, and HistoryUnavailable for a source that does not answer or does not
        list a finished DDL within FINISH_WAIT_S."""
        end = time.monotonic() + FINISH_WAIT_S
        while True:
            current = await self._current_tables()
            new_jobs = [job for source in self._sources for job in self._history.add(await source.refresh())]
            if new_jobs:
                self.watched = watch(self._history, self._wanted)
            missing = self._missing_column(current)
            if not missing:
                return self.watched
            if time.monotonic() > end:
                why = f"its job is still not listed {FINISH_WAIT_S:g} s after the column {missing} was made public"
                raise HistoryUnavailable(self.describe(), why)
            await asyncio.sleep(0.2)

    async def _current_tables(self) -> dict[int, TableInfo | None]:
        """Return the current TableInfos of the watched tables, from sources that have them. They are read before the
        history: if a column is missing or not public in them, then rows have no public values of it yet, or its job is
        in the history."""
        tables: dict[int, TableInfo | None] = {}
        for table_id in self.watched.ids:
            for source in self._sources:
                tables[table_id] = tables.get(table_id) or await source.table(table_id)
        return tables

    def _missing_column(self, current: dict[int, TableInfo | None]) -> str:
        """Return the name of a public column that is in no known job; "" if there is none."""
        for table_id, info in current.items():
            written = self.watched.ids[table_id][-1]
            for column in info.public_columns if info is not None else ():
                if column.id not in written.info.columns_by_id:
                    return f"{written.info.name}.{column.name}"
        return ""


def table_history(options: SourceOptions, pumps: Pumps) -> TableHistory:
    """Return a history of the configured sources and the jobs published in etcd."""
    return TableHistory(options.job_sources(pumps.etcd), options.tables)


PIECES = 4


class StartedTwice(BinlogError):
    """A table changed between Spark's request for the schema and the start of the reader."""


@dataclass(frozen=True)
class ChangesTask(InputPartition):  # type: ignore[misc]  # mypy does not follow pyspark
    """One range of commit_ts on every pump. Picklable; holds no connection."""

    ranges: tuple[PumpRange, ...]
    cluster_id: int
    security: Security
    reading: Reading


def schema_for(options: SourceOptions) -> StructType:
    """Return the Spark schema of the current tables. Raises TablesUnfit, RuleRefused, HistoryBroken, EtcdError."""
    pumps = Pumps(options)
    try:
        history = table_history(options, pumps)
        fields = _fields(history, options, pumps, read_rules(options.rules_file))
    finally:
        pumps.close()
    return _schema_of(fields, options)


def _schema_of(fields: Fields, options: SourceOptions) -> StructType:
    if options.shape == "changelog":
        return changelog_schema(fields)
    return change_schema(fields, collect=options.schema_changes == "collect")


def read_rules(file: str) -> StreamRules:
    """Return the rules of a drainer's configuration file, none if `file` is empty. Raises ConfigError."""
    if not file:
        return StreamRules()
    from drainer.config import PROGRAM  # executors do not need it

    syncer = load(PROGRAM, ["-config", file], environ={}).syncer
    return StreamRules(syncer.rules().without_routes(), syncer.events(), syncer.ignore_txn_commit_ts)


def _fields(history: TableHistory, options: SourceOptions, pumps: Pumps, rules: StreamRules) -> Fields:
    pumps.run(history.refresh())
    tables = chosen(history.watched, options.tables, history.describe())
    return fields_of({name: rules.applied(name, info) for name, info in tables.items()})


class _Tables:
    """The tables and the DDL history of a query."""

    def __init__(self, options: SourceOptions, pumps: Pumps, schema: StructType) -> None:
        self._options = options
        self._pumps = pumps
        self._history = table_history(options, pumps)
        self._rules = read_rules(options.rules_file)
        self._fields = _fields(self._history, options, pumps, self._rules)
        newest = self._history.watched.newest
        for text in self._rules.values.warnings([(name[0], newest[name]) for name in self._fields.columns]):
            _log.warning("a rule has no effect on this stream", rules_file=options.rules_file, rule=text)
        self._begin_version = self._history.watched.version
        self._read_at_ts = 0  # binlogs up to this ts had been written when the history was last read
        if _schema_of(self._fields, options) != schema:
            tables = ", ".join(".".join(name) for name in options.tables)
            raise StartedTwice(f"a DDL changed {tables} while the query was starting: start it again")

    def survey(self, after_ts: int, limits: BatchLimits) -> Watermark:
        """Return a survey that ends before the first DDL and before the first row above the newest known schema
        version. If that is the next binlog, the history is read again and the survey does not stop there."""
        version = self._history.watched.version
        watermark = self._pumps.survey(after_ts, replace(limits, stop_at_schema=True, schema_version=version))
        if watermark.end_ts > after_ts or watermark.ts <= after_ts:
            return watermark
        watermark = self._pumps.survey(after_ts, limits)
        self._read_history(watermark)
        return watermark

    def tasks(self, after_ts: int, until_ts: int, limits: BatchLimits) -> list[InputPartition]:
        """Return the tasks of a range. The range may have been planned before a restart, and need not match a survey
        now.
        """
        watermark = self.survey(after_ts, limits)
        if watermark.end_ts < until_ts:
            watermark = self._pumps.survey(after_ts, limits)
            if self._read_at_ts < until_ts:
                self._read_history(watermark)
        return [self._task(ranges) for ranges in self._windows(watermark, after_ts, until_ts)]

    def _read_history(self, watermark: Watermark) -> None:
        """Read the history again, after everything that `watermark` covers was written."""
        self._pumps.run(self._history.refresh())
        self._read_at_ts = watermark.ts

    def _windows(self, watermark: Watermark, after_ts: int, until_ts: int) -> Iterator[tuple[PumpRange, ...]]:
        """Return the ranges of all pumps, split at the split points of the pump with the most bytes."""
        largest = max(watermark.marks, key=lambda mark: mark.batch_bytes, default=None)
        if largest is None:
            return
        cut = ranges_of(largest, after_ts=after_ts, until_ts=until_ts, pieces_max=PIECES)
        for window in cut:
            low, high = window.after_ts, window.until_ts
            ranges = [
                PumpRange(
                    mark.node_id,
                    mark.host,
                    mark.extension,
                    low,
                    high,
                    # the counts of a mark begin where the survey began
                    mark.counted(high) if low == after_ts else None,
                    mark.topic,
                )
                for mark in watermark.marks
            ]
            yield tuple(self._pumps.counted(part) for part in ranges)

    def _task(self, ranges: tuple[PumpRange, ...]) -> ChangesTask:
        options = self._options
        reading = Reading(
            self._history.watched,
            self._fields,
            self._begin_version,
            collect=options.schema_changes == "collect",
            zero_dates_fail=options.zero_dates == "fail",
            rules=self._rules,
            changelog=options.shape == "changelog",
        )
        return ChangesTask(ranges, self._pumps.cluster_id, options.security, reading)


class ChangesStreamReader(StreamReader):
    """The reader of `spark.readStream` with the option `table`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = schema
        self._tables: _Tables | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(partition)

    def _survey(self, after_ts: int, limits: BatchLimits) -> Watermark:
        return self._opened().survey(after_ts, limits)

    def _tasks(self, after_ts: int, until_ts: int) -> list[InputPartition]:
        return self._opened().tasks(after_ts, until_ts, BatchLimits(self._options.batch_bytes_max))

    def _opened(self) -> _Tables:
        if self._tables is None:
            self._tables = _Tables(self._options, self._connected(), self._schema)
        return self._tables


class ChangesBatchReader(BatchReader):
    """The reader of `spark.read` with the option `table`: every change in (start-ts, end-ts]."""

    _surveyed = BatchLimits(1)  # `_Tables` surveys again, up to the first DDL that it does not know

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(partition)

    def _tasks(self, pumps: Pumps, watermark: Watermark, until_ts: int) -> list[InputPartition]:
        return _Tables(self._options, pumps, self._schema).tasks(self._options.start_ts, until_ts, BatchLimits(1 << 40))


def read_changes(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In an executor: yield the record batches of one task. For a range without partitions Spark calls this once with
    an empty partition of its own."""
    if not isinstance(partition, ChangesTask):
        return
    changes = Changes(partition.reading)
    try:
        merged = heapq.merge(*[_served(part, partition) for part in partition.ranges])
        for _, group in groupby(merged, key=attrgetter("commit_ts")):
            for transaction in in_order(group):
                changes.add(transaction.payload)
            if changes.is_full:  # asked between commits: the shape "changelog" folds the changes of each
                yield from _not_empty(changes.batch())
        yield from _not_empty(changes.batch())
    except BinlogError as error:
        raise UNSEALED.carry(error) from error


def _not_empty(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        yield batch


def _served(part: PumpRange, task: ChangesTask) -> Iterator[Scanned]:
    for binlogs, _ in pull_binlogs(part, cluster_id=task.cluster_id, security=task.security):
        yield from map(scan, binlogs)
