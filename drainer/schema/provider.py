"""Reads DDL jobs from files, status ports and etcd into a Schema. The I/O around the pure segmenter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from binlog.runtime.log import Outage, get_logger
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import Flag

from drainer.batch.served import Batch
from drainer.schema.catalog import Catalog, partition_ids
from drainer.schema.errors import (
    HistoryBroken,
    HistoryUnavailable,
    JobMissing,
    JobUnknown,
    TableUnverified,
    UnknownColumn,
)
from drainer.schema.history.base import JobHistory, JobSource
from drainer.schema.history.snapshot import SchemaSnapshot, SnapshotUnusable
from drainer.schema.job_kinds import guessed
from drainer.schema.job_policy import Policy
from drainer.schema.state import Schema

# Detects a running DDL that the job history does not show yet. Pure.
#
# A status port lists a job only when it has finished, but a DDL may affect rows some schema versions earlier: a unique
# key that is no longer enforced (rule 12: REPLACE evicts only stale rows), a type changed in place by one of several
# changes, a column missing in updates, a partition that is no longer written. So after a row of a new version has been
# seen, the current table is read from the status port: if it equals the known one in everything that affects rows, it
# did so for that row too.
_SHOWN_FLAGS = Flag.NOT_NULL | Flag.UNSIGNED


def is_current(known: TableInfo, fresh: TableInfo | None) -> bool:
    """Return whether `known`, the table after its newest known job, equals `fresh`, the table at the status port, in
    columns, unique keys and partitions. True if `fresh` is None (dropped, or not available)."""
    if fresh is None:
        return True
    shown = {column.id: _shape(column) for column in fresh.public_columns}
    if any(shown.get(column.id) != _shape(column) for column in known.public_columns):
        return False
    keys = {(index.id, index.name.lower()) for index in fresh.unique_indexes()}
    if any((index.id, index.name.lower()) not in keys for index in known.unique_indexes()):
        return False
    return partition_ids(known) <= partition_ids(fresh)


def _shape(column: ColumnInfo) -> tuple[object, ...]:
    kind = column.type
    return kind.tp, kind.flag & _SHOWN_FLAGS, kind.flen, kind.decimal, kind.charset, kind.collate, kind.elems


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """`tables`: names of the replicated tables; `first_ts`: FinishedTS of the first DDL, 0: none, or not known."""

    tables: tuple[tuple[str, str], ...]
    first_ts: int


class SchemaProvider:
    """Opens a schema at a destination's position and reads the sources again whenever a batch needs newer jobs.

    Per batch: `prepare(batch)`, then segment it. Segmenting raises JobUnknown only when `prepare` did not find the job:
    call `missing(error)` and continue from error.final_ts, after a pause if it returns False.

    `read_snapshot`: reads a schema from TiKV, so that the sources are read from there on. If that fails, or the schema
    is not older than the position, the whole history is read.
    """

    def __init__(
        self,
        sources: Sequence[JobSource],
        policy: Policy,
        read_snapshot: Callable[[], Awaitable[SchemaSnapshot]] | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self.complete = all(source.complete for source in sources)  # whether together they have every relevant job
        self._read_snapshot = read_snapshot
        self._snapshot: SchemaSnapshot | None = None
        self._policy = policy
        self._history = JobHistory()
        self._sizes = 0
        self._logged_sources: list[JobSource] = []
        self._outage = Outage(_log, "DDL history is unavailable", "DDL history is available again")
        self.schema = Schema.open(self._history, position_ts=0, policy=policy)

    async def open(
        self,
        *,
        position_ts: int,
        schema_version: int = 0,
        job_done: Callable[[int], bool] | None = None,
        first_start: bool = False,
    ) -> Schema:
        """Read every source and open the schema at a position (see Schema.open). Raises HistoryBroken,
        HistoryUnavailable."""
        await self._read()
        base = await self._base(position_ts)
        self.schema = Schema.open(
            self._history,
            position_ts=position_ts,
            schema_version=schema_version,
            job_done=job_done,
            policy=self._policy,
            first_start=first_start,
            complete=self.complete,
            base=base,
        )
        return self.schema

    async def known(self, at_ts: int) -> Known:
        """Tables and first DDL in the history, for a first start. Raises HistoryBroken, HistoryUnavailable."""
        await self._read()
        shown = self._snapshot
        base, shown_ts = (shown.catalog(), shown.ts) if shown is not None else (None, 0)
        schema = Schema.open(self._history, position_ts=max(at_ts, shown_ts), policy=self._policy, base=base)
        tables, _ = schema.catalog.replicated(self._policy.filter.allows)
        there = (table for table in tables.values() if shown_ts <= at_ts or table.current.update_timestamp <= at_ts)
        names = sorted({self._policy.rules.name(table.schema, table.name) for table in there})
        finished = [job.finished_ts for job in self._history if job.finished_ts and shown is None]
        return Known(tuple(names), min(finished, default=0))

    async def _base(self, position_ts: int) -> Catalog | None:
        """The catalog of the snapshot; None where the whole history is read."""
        if self._snapshot is None:
            return None
        try:
            return self._snapshot.catalog_for(position_ts, self._history)
        except SnapshotUnusable as error:
            _log.info("the schema in TiKV is not used: reading the whole DDL history", why=str(error))
        self._begin_after(None)
        await self._read()
        return None

    def _begin_after(self, snapshot: SchemaSnapshot | None) -> None:
        self._snapshot, self._history.begins_after = snapshot, snapshot.version if snapshot is not None else 0
        self._logged_sources.clear()
        for source in self._sources:
            source.begin_after(snapshot)

    @property
    def has_more(self) -> bool:
        """Whether a source got jobs since it was read."""
        return sum(source.size for source in self._sources) > self._sizes

    def check_rules(self) -> None:
        """Warn of rules that match nothing in the schema. Raises RuleRefused for one that cannot be applied."""
        self.schema.view()
        catalog, policy = self.schema.catalog, self._policy
        tables = [(table.schema, table.current) for table in catalog.replicated(policy.filter.allows)[0].values()]
        for warning in policy.rules.warnings(tables):
            _log.warning("a rule matches nothing in upstream's schema", why=warning)

    async def _read(self) -> None:
        read_snapshot, self._read_snapshot = self._read_snapshot, None
        if read_snapshot is not None:
            try:
                found = await read_snapshot()
            except SnapshotUnusable as error:
                _log.info("the schema is not read from TiKV: reading the whole DDL history", why=str(error))
            else:
                self._begin_after(found)
                _log.info(
                    "schema read from TiKV: reading the DDL jobs after it",
                    ts=found.ts,
                    schema_version=found.version,
                    tables=len(found.tables),
                    running_jobs=len(found.running),
                )
        for source in self._sources:
            jobs = await source.refresh()
            self._history.add(jobs)
            if jobs or source not in self._logged_sources:
                _log.info("DDL history read", source=source.describe(), jobs=len(jobs))
                self._logged_sources.append(source)

    async def prepare(self, batch: Batch) -> None:
        """Read the sources again if the batch needs a job or a version that is not known yet. If a source does not
        answer, segmenting raises JobUnknown."""
        unknown = [job_id for job_id in batch.ddl_texts if self.schema.job(job_id) is None]
        version = batch.greatest_version
        if not unknown and version <= self.schema.settled_version and not self.has_more:
            return
        try:
            await self._refresh(None)
            for job_id in unknown:
                if self.schema.job(job_id) is None:
                    await self._refresh(job_id)
        except HistoryUnavailable as error:
            self._outage.failed(error=str(error))
            return
        self.schema.settle(version)

    async def missing(self, error: JobUnknown) -> bool:
        """Read the sources for the missing job; False when it may still appear.

        Raises JobMissing when all sources are complete and none has it.
        """
        try:
            await self._refresh(error.job_id)
        except HistoryUnavailable as unavailable:
            self._outage.failed(error=str(unavailable))
            return False
        if error.version is not None:
            self.schema.settle(error.version)
        if error.job_id is None or self.schema.job(error.job_id) is not None:
            return True
        if self.complete:
            sources = ", ".join(source.describe() for source in self._sources) or "no source is configured"
            raise JobMissing(job_id=error.job_id, commit_ts=error.commit_ts, sources=sources)
        return False

    async def resolve_column(self, error: UnknownColumn) -> bool:
        """Handle an unknown column id found by a decoder. True: decode again with `schema.view()`, the column may be
        skipped or its DDL is known; False: the row must wait, call again after a pause."""
        try:
            # The table first, the history after it: then a column that is missing in the table was added and dropped by
            # jobs that the history contains, or its DDL was rolled back.
            fresh = await self._current_table(error.table_id)
            if await self._refresh(None):
                return True
        except HistoryUnavailable as unavailable:
            self._outage.failed(error=str(unavailable))
            return False
        column = fresh.columns_by_id.get(error.column_id) if fresh is not None else None
        job = self.schema.job_that_publishes(error.table_id, error.column_id)
        if job is None and column is not None and column.is_public:
            return False  # the job has just finished, and is not listed yet
        if job is not None and guessed(job):
            self.schema.bring_forward(job, error.schema_version)
        else:
            self.schema.skip_column(error.table_id, error.column_id, error.schema_version)
        return True

    async def verify(self, error: TableUnverified) -> bool:
        """Check whether a DDL is running on the tables. Return True if there is none, or if its job is known now:
        decode again with `schema.view()`. Return False if the rows must wait for it: call again after a pause."""
        seen_version = max(error.schema_version, self.schema.settled_version)
        try:
            current = [(table_id, await self._current_table_or_none(table_id)) for table_id in error.table_ids]
            found = await self._refresh(None)
        except HistoryUnavailable as unavailable:
            self._outage.failed(error=str(unavailable))
            return False
        changed = []
        for table_id, fresh in current:
            known = self.schema.newest(table_id)
            if known is None or is_current(known, fresh):
                self.schema.verify(table_id, seen_version)
            else:
                changed.append(table_id)
        return not changed or found > 0

    async def _current_table_or_none(self, table_id: int) -> TableInfo | None:
        """Return what `_current_table` returns, but None for an answer that is not a table."""
        try:
            return await self._current_table(table_id)
        except HistoryUnavailable:
            raise
        except HistoryBroken as broken:
            _log.warning("cannot read a table from the status port", table_id=table_id, error=str(broken))
            return None

    async def _current_table(self, table_id: int) -> TableInfo | None:
        """Return the current TableInfo from the first source that has it; None if no source has it."""
        for source in self._sources:
            fresh = await source.table(table_id)
            if fresh is not None:
                return fresh
        return None

    async def _refresh(self, wanted: int | None) -> int:
        found, self._sizes = 0, sum(source.size for source in self._sources)
        for source in self._sources:
            found += self.schema.learn(await source.refresh(wanted))
        self._outage.over()
        self.schema.settle(self._history.greatest_version)
        if found:
            _log.info(
                "new DDL jobs read from the schema history", jobs=found, schema_version=self._history.greatest_version
            )
        return found


# Gives the pipeline's thread access to the SchemaProvider, which reads its sources on the event loop.

T = TypeVar("T")


class LoopSchemaProvider:
    """The schema provider as a synchronous caller sees it. Every call blocks until the event loop has finished it."""

    def __init__(self, provider: SchemaProvider, loop: asyncio.AbstractEventLoop) -> None:
        self._provider = provider
        self.complete = provider.complete
        self._loop = loop

    @property
    def schema(self) -> Schema:
        return self._provider.schema

    def prepare(self, batch: Batch) -> None:
        known = self._provider.schema
        unknown = any(known.job(job_id) is None for job_id in batch.ddl_texts)
        if unknown or batch.greatest_version > known.settled_version or self._provider.has_more:
            self._wait(self._provider.prepare(batch))

    def missing(self, error: JobUnknown) -> bool:
        return self._wait(self._provider.missing(error))

    def resolve_column(self, error: UnknownColumn) -> bool:
        return self._wait(self._provider.resolve_column(error))

    def verify(self, error: TableUnverified) -> bool:
        return self._wait(self._provider.verify(error))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
