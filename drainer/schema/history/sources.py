"""The sources of DDL history that need no server of TiDB's, a file and etcd; and the list of sources that the
configuration asks for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from binlog.cluster.etcd import Etcd
from binlog.cluster.published_jobs import PublishedJobs
from binlog.errors import DecodeError, EtcdError
from binlog.runtime.security import Security
from binlog.tidb.job import Job

from drainer.schema.errors import HistoryBroken, HistoryUnavailable
from drainer.schema.history.base import JobSource
from drainer.schema.history.status_port import UrlSource, fetcher

# DDL jobs from a file: the body of TiDB's /ddl/history (a JSON array), or one JSON job per line.

_BETWEEN = " \t\r\n,"


class FileSource(JobSource):
    """Reads the file again when its size or modification time has changed, so it may be appended to."""

    complete = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def describe(self) -> str:
        return str(self._path)

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """All jobs of the file, or none if it has not changed. HistoryBroken names file and line."""
        try:
            status = self._path.stat()
            seen = (status.st_size, status.st_mtime_ns)
            if seen == self._seen:
                return []
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HistoryBroken(str(self._path), f"cannot be read: {error}") from error
        jobs = parse_jobs(text, str(self._path))
        self._seen = seen
        return jobs


def parse_jobs(text: str, name: str) -> list[Job]:
    """Jobs of a JSON array, or of objects one after another. HistoryBroken names `name` and the line."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    in_array = text[at : at + 1] == "["
    if in_array:
        at = _skip(text, at + 1)
    jobs: list[Job] = []
    line, counted = 1, 0
    while at < len(text) and not (in_array and text[at] == "]"):
        line += text.count("\n", counted, at)
        counted = at
        try:
            document, end = decoder.raw_decode(text, at)
            if not isinstance(document, dict):
                raise HistoryBroken(f"{name}, line {line}", f"a job expected, not {text[at : at + 20]!r}")
            jobs.append(Job.from_json(document))
        except json.JSONDecodeError as error:
            raise HistoryBroken(f"{name}, line {error.lineno}", f"not JSON: {error.msg}") from error
        except DecodeError as error:
            raise HistoryBroken(f"{name}, line {line}", str(error)) from error
        at = _skip(text, end)
    if in_array and at >= len(text):
        raise HistoryBroken(f"{name}, line {text.count(chr(10)) + 1}", "the array does not end")
    return jobs


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BETWEEN:
        at += 1
    return at


# DDL jobs from etcd, where services that embed the SDK publish each job before they write rows of it.


class PublishedSource(JobSource):
    """Jobs published in etcd. Complete: a writer publishes a job before any row that needs it, so a read that begins
    after a row was seen returns it. Their tables are written as upserts (TableInfo.upserts, rule 21: one outcome
    wherever a stream is cut)."""

    complete = True

    def __init__(self, store: PublishedJobs) -> None:
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
                job = Job.from_json(document)
            except DecodeError as error:
                raise HistoryBroken(f"in etcd, schema version {version}", str(error)) from error
            info = job.table_info and replace(job.table_info, upserts=True)
            infos = tuple(replace(table, upserts=True) for table in job.multiple_table_infos)
            jobs.append(replace(job, table_info=info, multiple_table_infos=infos))
            self._known.add(version)
        return jobs


def job_sources(etcd: Etcd | None, security: Security, *, history_file: str, history_url: str) -> list[JobSource]:
    """The jobs that services publish in etcd, if it is given; then `history_file` and `history_url`, where they are not
    empty.

    An https status port is verified with the authority of `security` where that is set, with the system's otherwise.
    """
    sources: list[JobSource] = [] if etcd is None else [PublishedSource(PublishedJobs(etcd))]
    if history_file:
        sources.append(FileSource(Path(history_file)))
    if history_url:
        sources.append(UrlSource(history_url, fetch=fetcher(security.ssl_context(server=False))))
    return sources
