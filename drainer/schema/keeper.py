"""Keeps a Schema supplied from its sources: the shell between the pure walk and files, status ports and etcd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage
from binlog.tidb.table import TableInfo

from drainer.batch.served import Batch
from drainer.schema.errors import (
    HistoryBroken,
    HistoryUnavailable,
    JobMissing,
    JobUnknown,
    TableUnverified,
    UnknownColumn,
)
from drainer.schema.history.base import JobHistory, JobSource
from drainer.schema.job_policy import Policy
from drainer.schema.running_ddl import abreast
from drainer.schema.state import Schema
from drainer.schema.unknown_column import Verdict, unknown_column, unknown_until

_log = get_logger(__name__)


@runtime_checkable
class TableSource(Protocol):
    """A source that can also show a table as it stands at this moment."""

    async def table(self, table_id: int) -> TableInfo | None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """`tables`: names of the replicated tables of a moment; `first_ts`: when the first known DDL finished, 0: none."""

    tables: tuple[tuple[str, str], ...]
    first_ts: int


class SchemaKeeper:
    """Opens a schema at a destination's position, then reads the sources again whenever a batch needs more.

    Per batch: `prepare(batch)`, then walk. The walk raises JobUnknown only when `prepare` found nothing: call
    `missing(error)` and walk again from error.final_ts, after a pause where it returns False.
    """

    def __init__(self, sources: Sequence[JobSource], policy: Policy) -> None:
        self._sources = tuple(sources)
        self._policy = policy
        self._history = JobHistory()
        self._told: list[JobSource] = []
        self._away = Outage(_log, "DDL history is not there now", "DDL history is there again")
        self.schema = Schema.open(self._history, position_ts=0, policy=policy)

    @property
    def complete(self) -> bool:
        """Whether what the sources give together is everything that can matter: each of them says so."""
        return all(source.complete for source in self._sources)

    async def open(
        self,
        *,
        position_ts: int,
        schema_version: int = 0,
        job_done: Callable[[int], bool] | None = None,
        first_start: bool = False,
    ) -> Schema:
        """Read every source and open the schema at a position (see Schema.open). Raises what a source raises."""
        await self._read()
        self.schema = Schema.open(
            self._history,
            position_ts=position_ts,
            schema_version=schema_version,
            job_done=job_done,
            policy=self._policy,
            first_start=first_start,
            complete=self.complete,
        )
        return self.schema

    async def known(self, at_ts: int) -> Known:
        """What the sources tell, for a destination that may have no position yet. Raises what a source raises."""
        await self._read()
        schema = Schema.open(self._history, position_ts=at_ts, policy=self._policy)
        tables, _ = schema.catalog.replicated(self._policy.filter.allows)
        names = sorted({(table.schema, table.name) for table in tables.values()})
        finished = [job.finished_ts for job in self._history if job.finished_ts]
        return Known(tuple(names), min(finished, default=0))

    async def _read(self) -> None:
        for source in self._sources:
            jobs = await source.refresh()
            self._history.add(jobs)
            if jobs or source not in self._told:
                _log.info("DDL history read", source=source.describe(), jobs=len(jobs))
                self._told.append(source)

    async def prepare(self, batch: Batch) -> None:
        """Read the sources again if the batch names a job or a version that is not known yet. A source that does not
        answer leaves the rest to the walk, which then stops with JobUnknown."""
        unknown = [job_id for job_id in batch.ddl_texts if self.schema.job(job_id) is None]
        version = batch.greatest_version
        if not unknown and version <= self.schema.settled_version:
            return
        try:
            await self._refresh(None)
            for job_id in unknown:
                if self.schema.job(job_id) is None:
                    await self._refresh(job_id)
        except HistoryUnavailable as error:
            self._away.failed(error=str(error))
            return
        self.schema.settle(version)

    async def settle(self, version: int) -> bool:
        """Before rows of `version` are decoded elsewhere (executors): make sure the jobs up to it are known. False
        when a source does not answer."""
        if version > self.schema.settled_version:
            try:
                await self._refresh(None)
            except HistoryUnavailable as error:
                self._away.failed(error=str(error))
                return False
            self.schema.settle(version)
        return True

    async def missing(self, error: JobUnknown) -> bool:
        """Look for what the walk lacks; False when it is still not there and may yet come.

        Raises JobMissing when every source says that it has everything.
        """
        try:
            await self._refresh(error.job_id)
        except HistoryUnavailable as unavailable:
            self._away.failed(error=str(unavailable))
            return False
        if error.version is not None:
            self.schema.settle(error.version)
        if error.job_id is None or self.schema.job(error.job_id) is not None:
            return True
        if self.complete:
            sources = ", ".join(source.describe() for source in self._sources) or "no source at all"
            raise JobMissing(job_id=error.job_id, commit_ts=error.commit_ts, sources=sources)
        return False

    async def judge(self, error: UnknownColumn) -> bool:
        """A decoder met a column id it does not know. True: decode again with `schema.view()`, the column may be
        left out now or its DDL is known; False: the row must wait, ask again after a pause."""
        try:
            fresh = await self._shown(error.table_id)
            if await self._refresh(None):
                return True
        except HistoryUnavailable as unavailable:
            self._away.failed(error=str(unavailable))
            return False
        schema = self.schema
        job = schema.publisher(error.table_id, error.column_id)
        verdict = unknown_until(job) if job else unknown_column(fresh, error.column_id)
        if verdict is Verdict.WAIT:
            return False
        if job is not None and verdict is Verdict.RUN_FIRST:
            schema.bring_forward(job, error.schema_version)
            return True
        schema.leave_out(error.table_id, error.column_id, error.schema_version)
        return True

    async def verify(self, error: TableUnverified) -> bool:
        """Rows may be of a running DDL. True: decode again with `schema.view()`, no unknown DDL is at work on these
        tables, or its job is known now; False: their rows must wait for it, ask again after a pause."""
        seen_version = max(error.schema_version, self.schema.settled_version)
        try:
            shown = [(table_id, await self._shown_if_told(table_id)) for table_id in error.table_ids]
            found = await self._refresh(None)
        except HistoryUnavailable as unavailable:
            self._away.failed(error=str(unavailable))
            return False
        ahead = []
        for table_id, fresh in shown:
            known = self.schema.newest(table_id)
            if known is None or abreast(known, fresh):
                self.schema.verify(table_id, seen_version)
            else:
                ahead.append(table_id)
        return not ahead or found > 0

    async def _shown_if_told(self, table_id: int) -> TableInfo | None:
        """As `_shown`; a server whose answer is no table does not stop the rows."""
        try:
            return await self._shown(table_id)
        except HistoryUnavailable:
            raise
        except HistoryBroken as broken:
            _log.warning("a table cannot be read from the status port", table_id=table_id, error=str(broken))
            return None

    async def _shown(self, table_id: int) -> TableInfo | None:
        """The table as it stands at this moment, by the first source that tells."""
        for source in self._sources:
            if isinstance(source, TableSource):
                fresh = await source.table(table_id)
                if fresh is not None:
                    return fresh
        return None

    async def _refresh(self, wanted: int | None) -> int:
        found = 0
        for source in self._sources:
            found += self.schema.learn(await source.refresh(wanted))
        self._away.over()
        self.schema.settle(self._history.greatest_version)
        if found:
            _log.info("DDL jobs learned", jobs=found, greatest_version=self._history.greatest_version)
        return found
