"""DDL history from a status port, as several TiDB versions serve it."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from binlog.tidb.job import ActionType, Job
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.served import read_batch
from drainer.config import Config
from drainer.schema.errors import HistoryBroken, TableUnverified
from drainer.schema.history.sources import BURST, PAGE_JOBS, FileSource, Pace, UrlSource, fetcher, parse_jobs
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.service.daemon import job_sources
from tests.support.certificates import Authority, Pair
from tests.support.memory_etcd import MemoryEtcd
from tests.support.schema_case import BEGIN_TS, ddl, job, row, table, ts


@dataclass
class Port:
    """A stub of /ddl/history. `pages`: "old" knows only limit (the last n, ascending); "down" pages downwards from
    start_job_id; "up" pages upwards from it, which nobody documents; `cap`: the longest page it gives."""

    pages: str
    cap: int = 10_000
    ids: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tables: dict[int, object] = field(default_factory=dict)

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        parts = urlsplit(path)
        query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        if parts.path == "/schema":
            found = self.tables.get(query["table_id"])
            return (200, json.dumps(found).encode()) if found else (404, b"no such table")
        ids = sorted(self.ids)
        limit = min(query.get("limit", self.cap if "limit" in query else len(ids)), self.cap if query else len(ids))
        start = query.get("start_job_id")
        if start is not None and start < 1:
            return 400, b"start_job_id must be greater than 0"
        if self.pages == "old" or (start is None and "limit" not in query):
            chosen = ids[-limit:] if limit else ids
        elif self.pages == "down":
            chosen = [i for i in reversed(ids) if start is None or i <= start][:limit]
        else:
            chosen = [i for i in ids if start is None or i >= start][:limit] if start else ids[-limit:]
        jobs = [job(i, ActionType.ADD_COLUMN, i, table_id=1, table_info=table(1, "t")) for i in chosen]
        return 200, json.dumps([j.to_json() for j in jobs]).encode()


@contextmanager
def serving(port: Port, pair: Pair | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = port.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if pair else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("pages", ["old", "down", "up"])
async def test_first_refresh_returns_all_jobs_and_later_ones_only_new(pages: str) -> None:
    port = Port(pages, ids=list(range(1, 1000)))
    with serving(port) as url:
        source = UrlSource(url, interval_s=0)
        assert [j.id for j in await source.refresh()] == list(range(1, 1000))
        assert await source.refresh() == []
        port.ids += [1000, 1005]
        assert [j.id for j in await source.refresh()] == [1000, 1005]


@pytest.mark.parametrize("pages", ["old", "down", "up"])
@pytest.mark.parametrize("cap", [64, 10_000])
async def test_refresh_reads_several_pages_of_new_jobs(pages: str, cap: int) -> None:
    port = Port(pages, cap=cap, ids=list(range(1, 50)))
    with serving(port) as url:
        source = UrlSource(url + "/ddl/history", interval_s=0)
        await source.refresh()
        port.ids += range(50, 50 + 3 * PAGE_JOBS)
        assert [j.id for j in await source.refresh()] == list(range(50, 50 + 3 * PAGE_JOBS))


async def test_job_below_newest_page_is_found_by_its_id() -> None:
    """It finishes below the newest page of a busy cluster."""
    port = Port("down", ids=[i for i in range(1, 2000) if i != 17])
    with serving(port) as url:
        source = UrlSource(url, interval_s=0)
        await source.refresh()
        port.ids.append(17)
        assert await source.refresh() == []
        assert [j.id for j in await source.refresh(17)] == [17]


async def test_job_finished_out_of_order_within_newest_page_is_returned() -> None:
    port = Port("down", ids=[1, 2, 4, 5])
    with serving(port) as url:
        source = UrlSource(url, interval_s=0)
        await source.refresh()
        port.ids.append(3)
        assert [j.id for j in await source.refresh()] == [3]


async def test_refresh_waits_for_configured_interval() -> None:
    port = Port("down", ids=[1])
    with serving(port) as url:
        source = UrlSource(url, interval_s=0.05, burst=1)
        begin = time.monotonic()
        for _ in range(3):
            await source.refresh()
        assert time.monotonic() - begin >= 0.1


@given(
    asked=st.lists(st.floats(0, 5), min_size=1, max_size=60), interval_s=st.floats(0.01, 2), burst=st.integers(1, 10)
)
def test_pace_allows_burst_and_then_one_request_per_interval(asked: list[float], interval_s: float, burst: int) -> None:
    """`asked`: seconds between the end of one question and the next."""
    pace = Pace(interval_s, burst)
    now_s, begun = 0.0, []
    for apart_s in asked:
        now_s += apart_s
        now_s += pace.wait_s(now_s)
        begun.append(now_s)
    assert begun[:burst] == pytest.approx(list(itertools.accumulate(asked))[:burst])
    for first, last in zip(begun, begun[burst:], strict=False):
        assert last - first >= interval_s * 0.999


async def test_requests_for_row_after_ddl_fit_into_burst() -> None:
    """The DDL's job, the table as it stands, and the history once more. With an interval of a minute, one question that
    must wait for it would outlast the deadline."""
    port = Port("down", ids=[1], tables={1: table(1, "t").to_json()})
    with serving(port) as url:
        provider = SchemaProvider([UrlSource(url, interval_s=60)], Policy())
        await provider.open(position_ts=BEGIN_TS)
        port.ids.append(9)
        batch = read_batch([ddl(ts(1), 9, "x"), row(ts(2), 9, 1)], after_ts=BEGIN_TS, until_ts=ts(9))
        async with asyncio.timeout(50):
            await provider.prepare(batch)
            assert provider.schema.job(9) is not None
            assert await provider.verify(TableUnverified(table_ids=(1,), schema_version=9, commit_ts=ts(2)))
        assert [urlsplit(path).path for path in port.asked] == ["/ddl/history"] * 2 + ["/schema", "/ddl/history"]


async def test_repeated_refreshes_beyond_burst_are_delayed() -> None:
    port = Port("down", ids=[1])
    with serving(port) as url:
        source = UrlSource(url, interval_s=60)
        for _ in range(BURST):
            await source.refresh()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await source.refresh()
        assert len(port.asked) == BURST


async def test_known_jobs_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest page holds 200 of them, each with a whole table."""
    read: list[int] = []
    from_json = Job.from_json

    def counted(document: object) -> Job:
        found = from_json(document)  # type: ignore[arg-type]
        read.append(found.id)
        return found

    monkeypatch.setattr(Job, "from_json", counted)
    port = Port("down", ids=list(range(1, 100)))
    with serving(port) as url:
        source = UrlSource(url, interval_s=0)
        await source.refresh()
        read.clear()
        port.ids.append(100)
        assert [j.id for j in await source.refresh()] == [100]
        assert read == [100]


async def test_table_request_returns_current_table_info() -> None:
    port = Port("down", tables={10: table(10, "t", ["a", "b!2"]).to_json()})
    with serving(port) as url:
        source = UrlSource(url)
        found = await source.table(10)
        assert found is not None
        assert [c.name for c in found.columns] == ["a", "b"]
        assert await source.table(11) is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"{}"),
        (200, b"oops"),
        (200, b"[1]"),
        (200, b"[{}]"),
        (200, b'[{"id": 1, "type": []}]'),
        (400, b"no"),
        (500, b""),
    ],
)
async def test_invalid_status_port_answer_is_refused_with_its_path(status: int, body: bytes) -> None:
    class Bad(Port):
        def answer(self, path: str) -> tuple[int, bytes]:
            return status, body

    with serving(Bad("down")) as url, pytest.raises(HistoryBroken, match="/ddl/history"):
        await UrlSource(url).refresh()


async def test_unreachable_status_port_is_reported_with_its_url() -> None:
    with pytest.raises(HistoryBroken, match=r"127\.0\.0\.1:1/ddl/history: no answer"):
        await UrlSource("http://127.0.0.1:1", fetch=fetcher(timeout_s=1)).refresh()


@pytest.mark.parametrize("url", ["127.0.0.1:10080", "ftp://host", "http://", "history.json"])
def test_invalid_history_url_is_refused(url: str) -> None:
    with pytest.raises(HistoryBroken, match="not the http"):
        UrlSource(url)


async def test_https_status_port_certificate_is_verified_with_configured_ca(tmp_path: Path) -> None:
    """As etcd and pumps are: a TiDB's certificate is of the cluster's own authority."""
    (tmp_path / "other").mkdir()
    ours, stranger = Authority(tmp_path), Authority(tmp_path / "other", "stranger")

    async def jobs(url: str, authority: Authority | None) -> int:
        security = {"ssl-ca": str(authority.ca)} if authority else {}
        config = Config.model_validate({"security": security, "schema": {"history-url": url}})
        (source,) = (found for found in job_sources(config, MemoryEtcd()) if isinstance(found, UrlSource))
        return len(await source.refresh())

    with serving(Port("down"), ours.issue("status")) as url:
        assert await jobs(url, ours) == 0
        for wrong in (stranger, None):
            with pytest.raises(HistoryBroken, match="certificate verify failed"):
                await jobs(url, wrong)


# DDL history from a file.


JOBS = [
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d")),
    job(3, ActionType.CREATE_TABLE, 2, schema_id=2, table_id=10, table_info=table(10, "t")),
]
DOCUMENTS = [json.dumps(j.to_json()) for j in JOBS]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(DOCUMENTS) + "\n",
        "[\n" + ",\n".join(DOCUMENTS) + "\n]\n",
        json.dumps([j.to_json() for j in JOBS], indent=1),
    ],
    ids=["a job a line", "array of lines", "TiDB's indented array"],
)
def test_history_file_is_read_as_lines_or_json_array(text: str) -> None:
    assert [j.id for j in parse_jobs(text, "f")] == [1, 3]


def test_empty_history_file_has_no_jobs() -> None:
    assert parse_jobs("", "f") == []
    assert parse_jobs("[]", "f") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DOCUMENTS[0] + "\n{oops", "f, line 2: not JSON"),
        (DOCUMENTS[0] + '\n{"id": "three"}', "f, line 2: "),
        (DOCUMENTS[0] + "\n\n17", "f, line 3: a job expected, not '17'"),
        ("[\n" + DOCUMENTS[0] + ",\n", "f, line 3: the array does not end"),
        (DOCUMENTS[0][:-5], "f, line 1: not JSON"),
    ],
)
def test_invalid_history_file_is_refused_with_line_number(text: str, message: str) -> None:
    with pytest.raises(HistoryBroken) as caught:
        parse_jobs(text, "f")
    assert message in str(caught.value)


async def test_changed_history_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(DOCUMENTS[0])
    source = FileSource(path)
    assert [j.id for j in await source.refresh()] == [1]
    assert await source.refresh() == []
    path.write_text("\n".join(DOCUMENTS))
    assert [j.id for j in await source.refresh()] == [1, 3]


async def test_missing_or_binary_history_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(HistoryBroken, match=r"nowhere\.json: cannot be read"):
        await FileSource(tmp_path / "nowhere.json").refresh()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(HistoryBroken, match="binary: cannot be read"):
        await FileSource(tmp_path / "binary").refresh()
