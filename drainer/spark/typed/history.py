"""DDL history of a change stream: read at the start of the query and again when rows may need newer jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from binlog.tidb.table import TableInfo

from drainer.schema.errors import HistoryUnavailable
from drainer.schema.history.base import JobHistory, JobSource
from drainer.schema.history.sources import job_sources
from drainer.schema.keeper import TableSource
from drainer.schema.table_versions import Name, Watched, watch
from drainer.spark.source.options import SourceOptions
from drainer.spark.source.pump_set import Pumps

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
        sources = [source for source in self._sources if isinstance(source, TableSource)]
        tables: dict[int, TableInfo | None] = {}
        for table_id in self.watched.ids if sources else ():
            for source in sources:
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
    sources = job_sources(
        pumps.etcd, options.security, history_file=options.history_file, history_url=options.history_url
    )
    return TableHistory(sources, options.tables)
