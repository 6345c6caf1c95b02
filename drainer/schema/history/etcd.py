"""DDL jobs from etcd, where services that embed the SDK publish each job before they write rows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from binlog.errors import DecodeError, EtcdError
from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.schema.errors import HistoryBroken, HistoryUnavailable


class JobStore(Protocol):
    """Reads the DDL jobs that services of the SDK publish in etcd (binlog.cluster.published_jobs.PublishedJobs)."""

    async def all(self) -> list[tuple[int, bytes]]: ...


class PublishedSource:
    """Jobs published in etcd. Complete: a writer publishes a job before any row that needs it, so a read that begins
    after a row was seen returns it. Their tables are written as upserts (TableInfo.upserts, rule 21: one outcome
    wherever a stream is cut)."""

    complete = True

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._known: set[int] = set()

    def describe(self) -> str:
        return "jobs published in etcd"

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """Jobs of versions not seen before. HistoryBroken names the key's version; HistoryUnavailable: etcd does not
        answer."""
        jobs = []
        try:
            published = await self._store.all()
        except EtcdError as error:
            raise HistoryUnavailable("in etcd", str(error)) from error
        for version, document in published:
            if version in self._known:
                continue
            try:
                jobs.append(_upserting(Job.from_json(document)))
            except DecodeError as error:
                raise HistoryBroken(f"in etcd, schema version {version}", str(error)) from error
            self._known.add(version)
        return jobs


def _upserting(job: Job) -> Job:
    """The job with `upserts` set in its tables."""
    info = job.table_info
    return replace(
        job,
        table_info=None if info is None else _marked(info),
        multiple_table_infos=tuple(_marked(table) for table in job.multiple_table_infos),
    )


def _marked(info: TableInfo) -> TableInfo:
    return replace(info, upserts=True)
