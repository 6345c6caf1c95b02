"""The sources of DDL history: a TiDB status port, a file and etcd; and the list of sources that the configuration asks
for.

A status port's GET /ddl/history is read again when a job is missing. Its parameters mean different things in different
versions: `limit` alone gives the last n jobs, ascending in old versions and descending in new ones; `start_job_id` is
unknown to old ones, and goes down from that id in new ones, which may also cap `limit`. So no order is assumed. A page
that does not go below the previous one means that the server does not support paging: then the whole history is
requested at once.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from binlog.cluster.etcd import Etcd
from binlog.cluster.writers import PublishedJobs
from binlog.errors import DecodeError, EtcdError
from binlog.runtime.security import Security
from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.schema.errors import HistoryBroken, HistoryUnavailable
from drainer.schema.history.base import JobSource
from drainer.schema.history.snapshot import SchemaSnapshot

PAGE_JOBS = 200
TIMEOUT_S = 30.0
# Rate limit that protects TiDB's status port while a job is awaited. A DDL and the rows after it need a few requests in
# a row, which are not delayed.
INTERVAL_S_MIN = 0.3
BURST = 8
BODY_BYTES_MAX = 1 << 30

Fetch = Callable[[str], Awaitable[bytes | None]]
# A job as JSON, not decoded yet.
Document = dict[str, Any]


class Pace:
    """Rate limiter: one request per `interval_s` on average, at most `burst` without delay. Seconds of a monotonic
    clock."""

    def __init__(self, interval_s: float, burst: int) -> None:
        self._interval_s = interval_s
        self._ahead_s = interval_s * (burst - 1)
        self._due_s = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Seconds to wait before a request made now; the request is counted."""
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + self._interval_s
        return max(0.0, due_s - self._ahead_s - now_s)


class UrlSource(JobSource):
    """Reads one status port: the history in the first refresh, whole or from a snapshot on; later the newest pages.

    A long-running job finishes after jobs with greater ids and may be below the newest page: it is requested by its id
    when it is `wanted`, and the newest page is always read whole, which usually contains it.
    """

    complete = False

    def __init__(
        self, url: str, *, fetch: Fetch | None = None, interval_s: float = INTERVAL_S_MIN, burst: int = BURST
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise HistoryBroken(url, "not the http:// or https:// URL of a TiDB status port")
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._fetch = fetch or fetcher()
        self._pace = Pace(interval_s, burst)
        self._known: set[int] = set()
        self._snapshot: SchemaSnapshot | None = None

    def begin_after(self, snapshot: SchemaSnapshot | None) -> None:
        self._snapshot = snapshot
        self._known.clear()

    def describe(self) -> str:
        return f"{self._base}/ddl/history"

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """The newest jobs, back to the first page without a new one. May wait for the rate limit."""
        pause_s = self._pace.wait_s(time.monotonic())
        if pause_s:
            await asyncio.sleep(pause_s)
        if self._known:
            jobs = await self._pages()
        else:
            jobs = await self._page("") if self._snapshot is None else await self._after(self._snapshot)
        if wanted is not None and wanted not in jobs and wanted not in self._known:
            jobs |= await self._page(f"?start_job_id={wanted}&limit=1", absent_ok=True)
        fresh = [self._job(jobs[job_id]) for job_id in sorted(jobs) if job_id not in self._known]
        self._known.update(jobs)
        return [job for job in fresh if self._snapshot is None or not self._snapshot.has(job)]

    async def _after(self, snapshot: SchemaSnapshot) -> dict[int, Document]:
        """The jobs that ended after the snapshot: those that were running then have smaller ids than the others."""
        jobs = await self._pages()
        for job in snapshot.running:
            if job.id not in jobs:
                jobs |= await self._page(f"?start_job_id={job.id}&limit=1", absent_ok=True)
        return jobs

    def _job(self, document: Document) -> Job:
        try:
            return Job.from_json(document)
        except DecodeError as error:
            raise HistoryBroken(self.describe(), str(error)) from error

    async def table(self, table_id: int) -> TableInfo | None:
        path = f"/schema?table_id={table_id}"
        body = await self._fetch(self._base + path)
        if body is None:
            return None
        try:
            return TableInfo.from_json(body)
        except DecodeError as error:
            raise HistoryBroken(self._base + path, str(error)) from error

    async def _pages(self) -> dict[int, Document]:
        """Pages from the newest down, until one holds a known job below all new ones, or nothing new."""
        jobs = await self._page(f"?limit={PAGE_JOBS}")
        while jobs:
            lowest = min(jobs)
            start_ts, snapshot = jobs[lowest].get("start_ts"), self._snapshot
            is_before_snapshot = snapshot is not None and isinstance(start_ts, int) and snapshot.is_after(start_ts)
            if lowest in self._known or lowest <= 1 or is_before_snapshot:
                return jobs
            page = await self._page(f"?start_job_id={lowest}&limit={PAGE_JOBS}", absent_ok=True)
            if any(job_id > lowest for job_id in page):
                return await self._page("")
            if not page.keys() - {lowest}:
                return jobs
            jobs |= page
        return jobs

    async def _page(self, query: str, *, absent_ok: bool = False) -> dict[int, Document]:
        url = self.describe() + query
        body = await self._fetch(url)
        if body is None:
            if absent_ok:
                return {}
            raise HistoryBroken(url, "the server refuses this request")
        try:
            documents = json.loads(body)
        except ValueError as error:
            raise HistoryBroken(url, str(error)) from error
        if not isinstance(documents, list):
            raise HistoryBroken(url, f"a list of jobs expected, not {body[:60]!r}")
        return {_id_of(url, document): document for document in documents}


def _id_of(url: str, document: object) -> int:
    """The job's id without decoding the job, which takes a millisecond; most jobs of a page are known already."""
    found = document.get("id") if isinstance(document, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise HistoryBroken(url, f"a job with a number as its id expected, not {document!r:.60}")
    return found


def fetcher(context: ssl.SSLContext | None = None, *, timeout_s: float = TIMEOUT_S) -> Fetch:
    """GET of a URL's body: None where the server answers 4xx, HistoryUnavailable where it does not answer."""

    def get(url: str) -> bytes | None:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s, context=context) as response:
                body: bytes = response.read(BODY_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            if 400 <= error.code < 500:
                return None
            raise HistoryUnavailable(url, f"HTTP {error.code}") from error
        except OSError as error:
            raise HistoryUnavailable(url, f"no answer: {error}") from error
        if len(body) > BODY_BYTES_MAX:
            raise HistoryBroken(url, f"more than {BODY_BYTES_MAX} bytes")
        return body

    async def fetch(url: str) -> bytes | None:
        return await asyncio.to_thread(get, url)

    return fetch


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
