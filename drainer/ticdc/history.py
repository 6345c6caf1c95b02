"""The DDL history that belongs to topics: which job each DDL of the topics is, and so which table a row has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from binlog.tidb.job import Job

from drainer.protocol.event import DdlEvent
from drainer.schema.errors import HistoryUnavailable
from drainer.schema.history.base import JobHistory, JobSource
from drainer.ticdc.heads import RowHead
from drainer.ticdc.tables import job_of, named_tables, packed

_TRIED: int = 25
_PAUSE_S: float = 0.2


class TopicHistory:
    """Shared by all partitions, on one event loop."""

    def __init__(self, sources: Sequence[JobSource]) -> None:
        self._sources = tuple(sources)
        self._history = JobHistory()
        self._read_at: dict[tuple[int, str], int] = {}
        self._tables = named_tables(self._history, {})
        self._packed = b""
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Read the history, if it was not read yet. Raises HistoryBroken, HistoryUnavailable."""
        async with self._reading:
            if not len(self._history):
                await self._refresh()

    def packed(self) -> bytes:
        """Return the packed NamedTables with every DDL that was placed."""
        self._packed = self._packed or packed(self._tables)
        return self._packed

    def lacks(self, job: Job) -> bool:
        """Return whether no topic had the DDL of a job: the changefeed's filter leaves it out, or it is older than the
        topics. To be asked for a job that finished below the resolved ts of all partitions."""
        return job.id not in self._read_at.values()

    def version_of(self, row: RowHead) -> int:
        """Return the schema version of a row; 0 if its table is not known, which the task that reads it reports."""
        found = self._tables.at(row.schema, row.table, row.commit_ts)
        return 0 if found is None else found.version

    async def place(self, event: DdlEvent) -> None:
        """Find the job of a DDL that was read from a topic. Raises HistoryBroken, and HistoryUnavailable if no source
        has the job after some seconds."""
        read = (event.commit_ts, event.query)
        async with self._reading:
            if read in self._read_at:
                return
            for tried in range(_TRIED):
                job = job_of(event, self._history, self._read_at)
                # One that did not finish then may have run beside the right one, which is not listed yet.
                if job is not None and (tried or job.finished_ts == event.commit_ts):
                    self._read_at[read] = job.id
                    self._rebuild()
                    return
                if not await self._refresh() and job is None:
                    await asyncio.sleep(_PAUSE_S)
        sources = ", ".join(source.describe() for source in self._sources) or "no source is configured"
        raise HistoryUnavailable(
            sources, f"it has no job for the DDL at commit_ts {event.commit_ts}: {event.query:.200}"
        )

    async def _refresh(self) -> int:
        found = sum([len(self._history.add(await source.refresh())) for source in self._sources])
        self._rebuild()
        return found

    def _rebuild(self) -> None:
        self._tables, self._packed = named_tables(self._history, self._read_at), b""
