"""The table, and its schema version, of a row that names its table alone: at the row's commit_ts, from DDL jobs.

Rows above a DDL's commit_ts have the table as it is after the DDL. TiCDC gives a DDL the FinishedTS of its job, and a
drainer the commit_ts of its binlog, which is earlier. So the commit_ts with which a DDL was read counts, and FinishedTS
for a DDL that was not.
"""

from __future__ import annotations

import asyncio
import pickle
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.protocol.errors import MessageError
from drainer.protocol.event import DdlEvent
from drainer.schema import job_effects, job_kinds
from drainer.schema.catalog import Catalog
from drainer.schema.errors import HistoryUnavailable
from drainer.schema.history.base import JobHistory, JobSource
from drainer.schema.unknown_column import public_version

Name = tuple[str, str]  # database and table, in lower case


class NamedTable(NamedTuple):
    """A table from one DDL to the next. `version`: the schema version from which on its rows have this layout."""

    table_id: int
    version: int
    info: TableInfo


class _Change(NamedTuple):
    """The table that a name denotes in rows above `after_ts`; None: there is none."""

    after_ts: int
    table: NamedTable | None


@dataclass(frozen=True, slots=True)
class NamedTables:
    """Every table by name and commit_ts, and for each DDL that was read its job and statement. Picklable."""

    changes: Mapping[Name, tuple[_Change, ...]]
    ddls: Mapping[tuple[int, str], tuple[int, str]]

    def at(self, schema: str, table: str, commit_ts: int) -> NamedTable | None:
        """Return the table of a row. None: no table had this name."""
        changes = self.changes.get((schema.lower(), table.lower()), ())
        if changes and commit_ts > changes[-1].after_ts:  # nearly always
            return changes[-1].table
        at = bisect_left(changes, commit_ts, key=lambda change: change.after_ts)
        if not at:  # a row may commit before FinishedTS of the DDL that created its table
            return changes[0].table if changes else None
        return changes[at - 1].table

    def job(self, event: DdlEvent) -> tuple[int, str]:
        """Return the id of a DDL's job, and its statement. Raises MessageError for a DDL whose message had not been
        read when these tables were made."""
        found = self.ddls.get((event.commit_ts, event.query))
        if found is None:
            raise MessageError(f"the DDL at commit_ts {event.commit_ts} had not been read when its range was planned")
        return found


def named_tables(history: JobHistory, read_at: Mapping[tuple[int, str], int]) -> NamedTables:
    """`read_at`: the job id of each DDL that was read, by its commit_ts and text."""
    commit_ts = {job_id: ts for (ts, _), job_id in read_at.items()}
    catalog = Catalog()
    changes: dict[Name, list[_Change]] = {}
    for job in history:
        if not job_kinds.takes_effect(job) or job_kinds.is_skipped(job):
            continue
        after_ts = commit_ts.get(job.id, job.finished_ts)
        for change in job_effects.apply(catalog, job, public_version(job, history.version_before(job))):
            if change.before is not None and not change.keeps_name:
                _add(changes, change.before.schema, change.before.name, _Change(after_ts, None))
            if change.after is not None:
                found = NamedTable(change.after.table_id, job.schema_version, change.after.info)
                _add(changes, change.after.schema, change.after.name, _Change(after_ts, found))
    jobs = {job.id: job.query for job in history}
    times = Counter(read_at.values())
    # A message has the statement as TiDB prints it, with its own syntax in comments. RENAME TABLE a TO b, c TO d may be
    # two messages, and is one job.
    ddls = {read: (job_id, jobs[job_id] if times[job_id] > 1 else read[1]) for read, job_id in read_at.items()}
    return NamedTables({name: tuple(each) for name, each in changes.items()}, ddls)


def _add(changes: dict[Name, list[_Change]], schema: str, table: str, change: _Change) -> None:
    known = changes.setdefault((schema.lower(), table.lower()), [])
    after_ts = max(change.after_ts, known[-1].after_ts if known else 0)
    known.append(change._replace(after_ts=after_ts))


def job_of(event: DdlEvent, jobs: Iterable[Job], read_at: Mapping[tuple[int, str], int]) -> Job | None:
    """Return the job of a DDL that was read: the one that finished at its commit_ts, or else the first one that ran
    then, best of the same table, and is not that of another DDL (`read_at`: see named_tables). None: it is not among
    these jobs. Statements cannot be compared, because messages have them as TiDB prints them."""
    others = {job_id for (commit_ts, _), job_id in read_at.items() if commit_ts != event.commit_ts}
    ran = [job for job in jobs if job.start_ts < event.commit_ts <= job.finished_ts and job.id not in others]
    name = (event.schema.lower(), event.table.lower())

    def rank(job: Job) -> tuple[bool, bool, int]:
        is_same = (job.schema_name.lower(), job.table_name.lower()) == name
        return job.finished_ts != event.commit_ts, not is_same, job.finished_ts

    return min(ran, key=rank, default=None)


def packed(tables: NamedTables) -> bytes:
    return zlib.compress(pickle.dumps(tables), 1)


@lru_cache(maxsize=2)  # a worker lives through many batches
def unpacked(data: bytes) -> NamedTables:
    """Return what `packed` packed. Both are used within one drainer alone."""
    found = pickle.loads(zlib.decompress(data))  # noqa: S301
    assert isinstance(found, NamedTables)
    return found


# Reads the DDL history from TiDB, and finds the job of each DDL message of the topics.
_TRIED: int = 25
_PAUSE_S: float = 0.2


class TopicHistory:
    """Shared by all partitions, on one event loop."""

    def __init__(self, sources: Sequence[JobSource]) -> None:
        self._sources = tuple(sources)
        self._history = JobHistory()
        self._read_at: dict[tuple[int, str], int] = {}
        self._tables: NamedTables | None = None  # made when they are needed after a change
        self._packed = b""
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Read the history, if it was not read yet. Raises HistoryBroken, HistoryUnavailable."""
        async with self._reading:
            if not len(self._history):
                await self._refresh()

    def packed(self) -> bytes:
        """Return the packed NamedTables with every DDL that was placed."""
        self._packed = self._packed or packed(self._named())
        return self._packed

    def lacks(self, job: Job) -> bool:
        """Return whether no topic had the DDL of a job: the changefeed's filter leaves it out, or it is older than the
        topics. To be asked for a job that finished below the resolved ts of all partitions."""
        return job.id not in self._read_at.values()

    def version_of(self, schema: str, table: str, commit_ts: int) -> int:
        """Return the schema version of a row; 0 if its table is not known, which the task that reads it reports."""
        found = self._named().at(schema, table, commit_ts)
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
                    self._changed()
                    return
                if not await self._refresh() and job is None:
                    await asyncio.sleep(_PAUSE_S)
        sources = ", ".join(source.describe() for source in self._sources) or "no source is configured"
        raise HistoryUnavailable(
            sources, f"it has no job for the DDL at commit_ts {event.commit_ts}: {event.query:.200}"
        )

    async def _refresh(self) -> int:
        found = sum([len(self._history.add(await source.refresh())) for source in self._sources])
        self._changed()
        return found

    def _changed(self) -> None:
        self._tables, self._packed = None, b""

    def _named(self) -> NamedTables:
        if self._tables is None:
            self._tables = named_tables(self._history, self._read_at)
        return self._tables
