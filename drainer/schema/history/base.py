"""The interface of a DDL job source, and the history of jobs read so far."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

if TYPE_CHECKING:
    from drainer.schema.history.snapshot import SchemaSnapshot


class JobSource(Protocol):
    """A source of finished jobs. `complete`: a refresh that begins after a binlog was written returns every job that
    the binlog needs (a file, published jobs). Not so a status port: it lists only finished jobs, so one that is about
    to finish can be missing."""

    complete: bool
    size: int = 0  # of one that gets jobs without being read: how many it has

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """Jobs that are new or changed since the last call (others may be among them); all at the first call.

        `wanted` is a job id to look for in particular. Raises HistoryBroken, HistoryUnavailable.
        """
        ...

    def describe(self) -> str:
        """The file or URL, for messages."""
        ...

    async def table(self, table_id: int) -> TableInfo | None:
        """The current TableInfo; None if there is no table of this id, or the source has no tables."""
        return None

    def begin_after(self, snapshot: SchemaSnapshot | None) -> None:
        """Leave out the jobs whose effect `snapshot` has, where that is less to read; None: begin again, with the first
        job."""
        return


class JobHistory:
    """Jobs by id and by schema version. `begins_after`: the schema version of the snapshot from which on jobs are read,
    0: they are read from the first on."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self.begins_after = 0
        self._by_id: dict[int, Job] = {}
        self._order: list[tuple[int, int]] = []
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> list[Job]:
        """Add jobs; returns the new or changed ones in version order."""
        fresh = []
        for job in jobs:
            known = self._by_id.get(job.id)
            if known is not None and known.schema_version == job.schema_version and known.state == job.state:
                continue
            if known is not None:
                self._order.remove((known.schema_version, known.id))
            self._by_id[job.id] = job
            insort(self._order, (job.schema_version, job.id))
            fresh.append(job)
        return sorted(fresh, key=lambda job: (job.schema_version, job.id))

    def get(self, job_id: int) -> Job | None:
        return self._by_id.get(job_id)

    def version_before(self, job: Job) -> int:
        """Schema version of the known job before this one, at least that of the snapshot; 0 for the first of all."""
        index = bisect_left(self._order, (job.schema_version, 0))
        return max(self._order[index - 1][0] if index else 0, self.begins_after)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Job]:
        """In schema version order."""
        return (self._by_id[job_id] for _, job_id in self._order)

    @property
    def greatest_version(self) -> int:
        return max(self._order[-1][0] if self._order else 0, self.begins_after)
