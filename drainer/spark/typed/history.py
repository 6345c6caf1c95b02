"""The DDL history behind a change stream: read when the query starts, and again when rows may need more of it."""

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
    """`refresh`; then `watched` has every job at work in rows that were written before the call."""

    def __init__(self, sources: Sequence[JobSource], wanted: Sequence[Name]) -> None:
        self._sources = tuple(sources)
        self._wanted = tuple(wanted)
        self._history = JobHistory()
        self.watched = watch(self._history, self._wanted)

    def describe(self) -> str:
        return ", ".join(source.describe() for source in self._sources)

    async def refresh(self) -> Watched:
        """Read what is new. Raises HistoryBroken, and HistoryUnavailable for a source that does not answer or does not
        show a finished DDL in time."""
        end = time.monotonic() + FINISH_WAIT_S
        while True:
            shown = await self._shown()
            found = [job for source in self._sources for job in self._history.add(await source.refresh())]
            if found:
                self.watched = watch(self._history, self._wanted)
            missing = self._unexplained(shown)
            if not missing:
                return self.watched
            if time.monotonic() > end:
                why = f"its job is not shown {FINISH_WAIT_S:g} s after the column {missing} was made public"
                raise HistoryUnavailable(self.describe(), why)
            await asyncio.sleep(0.2)

    async def _shown(self) -> dict[int, TableInfo | None]:
        """The watched tables as they are at this moment, where a source tells. Asked before the history is read: a
        column that is gone or not public there is in no row as a public one, or its job is in the history then."""
        sources = [source for source in self._sources if isinstance(source, TableSource)]
        found: dict[int, TableInfo | None] = {}
        for table_id in self.watched.ids if sources else ():
            for source in sources:
                found[table_id] = found.get(table_id) or await source.table(table_id)
        return found

    def _unexplained(self, shown: dict[int, TableInfo | None]) -> str:
        """The name of a public column that no job explains; "": there is none."""
        for table_id, info in shown.items():
            written = self.watched.ids[table_id][-1]
            for column in info.public_columns if info is not None else ():
                if column.id not in written.info.columns_by_id:
                    return f"{written.info.name}.{column.name}"
        return ""


def table_history(options: SourceOptions, pumps: Pumps) -> TableHistory:
    """With the sources that the options name, and the jobs that services publish in etcd."""
    sources = job_sources(
        pumps.etcd, options.security, history_file=options.history_file, history_url=options.history_url
    )
    return TableHistory(sources, options.tables)
