"""The DDL jobs known so far, and where they come from."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Protocol

from binlog.tidb.job import Job


class JobSource(Protocol):
    """Gives finished jobs. `complete`: after a refresh that began later than a binlog was written, every job that
    can matter to that binlog is there (a file, published jobs). A status port tells only of finished jobs, so a job
    that is about to finish can be missing (X-08)."""

    complete: bool

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """Jobs that are new or changed since the last call (others may be among them); all at the first call.

        `wanted` is a job id to look for in particular. Raises HistoryBroken, HistoryUnavailable.
        """
        ...

    def describe(self) -> str:
        """Its file or URL, for messages."""
        ...


class JobHistory:
    """Jobs by id, and in the order of their schema versions."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._by_id: dict[int, Job] = {}
        self._order: list[tuple[int, int]] = []
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> list[Job]:
        """Take in jobs; returns those that were not known, in version order. A job seen again replaces itself."""
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
        """Of the known job before this one, 0 for the first."""
        place = bisect_left(self._order, (job.schema_version, 0))
        return self._order[place - 1][0] if place else 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Job]:
        """In schema version order."""
        return (self._by_id[job_id] for _, job_id in self._order)

    @property
    def greatest_version(self) -> int:
        return self._order[-1][0] if self._order else 0
