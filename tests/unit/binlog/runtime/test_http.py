"""The status server over real HTTP, and the metrics it shows."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import metrics
from binlog.runtime.http import (
    NoAnswer,
    Request,
    Response,
    StatusServer,
    html_response,
    json_response,
    put,
    text_response,
)
from binlog.runtime.security import Security
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import Authority


async def status() -> Response:
    return json_response({"ErrMsg": "", "Checkpoint": {}}, newline=True)


async def broken() -> Response:
    raise BinlogError("pump-1 cannot say")


async def mistaken() -> Response:
    raise KeyError("secret detail")


async def change(request: Request) -> Response:
    return text_response(f"{request.method} {request.path['node']} {request.path['action']} {request.body!r}")


@pytest.fixture
async def server() -> object:
    made = StatusServer(
        "127.0.0.1:0",
        {"/status": status, "/broken": broken, "/mistaken": mistaken},
        actions={"PUT /state/{node}/{action}": change},
    )
    await made.start()
    yield made
    await made.close()


async def fetch(server: StatusServer, path: str, method: str = "GET", **options: object) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session:
        url = f"http://{server.addr}{path}"
        async with session.request(method, url, **options) as answer:  # type: ignore[arg-type]
            return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_status_server_answers_page_unknown_path_and_wrong_method(server: StatusServer) -> None:
    assert await fetch(server, "/status") == (
        200,
        "application/json; charset=utf-8",
        '{"ErrMsg":"","Checkpoint":{}}\n',
    )
    assert (await fetch(server, "/none"))[0] == 404
    assert (await fetch(server, "/status", "DELETE"))[0] == 405


async def test_status_server_action_gets_path_parameters_and_body(server: StatusServer) -> None:
    found = await fetch(server, "/state/pump-1%3A8250/pause", "PUT", data=b"x")
    assert found[2] == "PUT pump-1:8250 pause b'x'"
    assert (await fetch(server, "/state/p/pause", "PUT", data=b"x" * (2 << 20)))[0] == 413


async def test_status_server_answers_known_error_with_text_and_others_without(server: StatusServer) -> None:
    """A known error tells its text; a mistake tells nothing to the outside, and the server lives on."""
    assert await fetch(server, "/broken") == (500, "text/plain; charset=utf-8", "pump-1 cannot say\n")
    code, _, text = await fetch(server, "/mistaken")
    assert code == 500
    assert "secret" not in text
    assert (await fetch(server, "/status"))[0] == 200


async def test_a_busy_address_is_named(server: StatusServer) -> None:
    with pytest.raises(
        ConfigError, match=f"status-addr 127.0.0.1:{server.port}: cannot listen there: Address already in use"
    ):
        await StatusServer(server.addr, {}).start()
    with pytest.raises(ConfigError, match="status-addr: 'here' does not have the form host:port"):
        StatusServer("here", {})


async def test_cert_allowed_cn_guards_status_pages(tmp_path: Path) -> None:
    """cert-allowed-cn over HTTP (S-03)."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    settings = Security(str(authority.ca), str(pair.cert), str(pair.key), ("good",))
    peers: list[str] = []

    async def ask(request: Request) -> Response:
        peers.append(request.peer)
        return text_response("")

    server = StatusServer("127.0.0.1:0", {"/status": status}, actions={"PUT /ask": ask}, security=settings)
    await server.start()

    async def code(name: str) -> int:
        context = ssl.create_default_context(cafile=str(authority.ca))
        mine = authority.issue(name)
        context.load_cert_chain(mine.cert, mine.key)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{server.addr}/status", ssl=context) as answer,
        ):
            return answer.status

    assert await code("good") == 200
    assert await code("bad") == 403
    for name in ("good", "bad"):
        client = authority.issue(name)
        await put(server.addr, "/ask", security=Security(str(authority.ca), str(client.cert), str(client.key)))
    assert peers == ["127.0.0.1 (good)"]
    await server.close()


async def test_put_over_tls_names_server_without_tls_or_with_other_authority(tmp_path: Path) -> None:
    """binlogctl's way to a node; whoever does not answer in TLS, or is somebody else, is named."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "theirs")
    pair, mine, other = authority.issue("server"), authority.issue("client"), stranger.issue("stranger")
    settings = Security(str(authority.ca), str(pair.cert), str(pair.key))
    server = StatusServer("127.0.0.1:0", {}, actions={"PUT /state/{node}/{action}": change}, security=settings)
    await server.start()
    client = Security(str(authority.ca), str(mine.cert), str(mine.key))
    assert await put(server.addr, "/state/p%201/pause", security=client) == b"PUT p 1 pause b''"
    for security in (None, Security(str(stranger.ca), str(other.cert), str(other.key))):
        with pytest.raises(NoAnswer, match=f"{server.addr}/state/p/pause"):
            await put(server.addr, "/state/p/pause", security=security)
    await server.close()
    with pytest.raises(NoAnswer, match="Cannot connect"):
        await put(server.addr, "/state/p/pause", security=client, timeout_s=60)


async def test_metrics_keep_names_of_original(server: StatusServer) -> None:
    """The library would call every counter …_total; upstream's dashboards ask for the bare names."""
    lost = metrics.counter("test_loss_binlog_count", "lost")
    deleted = metrics.counter("test_deleted_kv_total", "deleted")
    errors = metrics.counter("test_error_count", "errors", ["type"])
    seconds = metrics.histogram("test_rpc_duration_seconds", "d", ["m"], buckets=metrics.exponential(0.5, 2, 3))
    ts = metrics.gauge("test_gc_ts", "ms")
    lost.inc(3)
    deleted.inc()
    errors.labels("read_value").inc()
    seconds.labels("a").observe(0.7)
    ts.set(5)
    code, kind, text = await fetch(server, "/metrics")
    assert (code, kind) == (200, metrics.CONTENT_TYPE)
    for line in (
        "# TYPE binlog_test_loss_binlog_count counter",
        "binlog_test_loss_binlog_count 3.0",
        "binlog_test_deleted_kv_total 1.0",
        'binlog_test_error_count{type="read_value"} 1.0',
        'binlog_test_rpc_duration_seconds_bucket{le="1.0",m="a"} 1.0',
        "binlog_test_gc_ts 5.0",
    ):
        assert line in text.splitlines(), line
    assert "_created" not in text
    assert "process_cpu_seconds_total" in text


@given(st.dictionaries(st.text(), st.integers()))
def test_json_response_is_compact(document: dict[str, int]) -> None:
    assert b": " not in json_response({}).body
    assert json_response(document).body.decode("utf-8", "surrogatepass")


def test_json_response_indents_and_html_response_sets_content_type() -> None:
    assert json_response({"code": 200}, indent=4).body == b'{\n    "code": 200\n}'
    assert html_response("<p>").content_type == "text/html; charset=utf-8"


@contextlib.asynccontextmanager
async def silent(server: StatusServer, said: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A peer that says so much and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    try:
        yield reader
    finally:
        writer.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Wait until the server closes a connection, and return what it sent before."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while more := await asyncio.wait_for(reader.read(1 << 16), 60):
            said += more
    return said


async def connections(server: StatusServer, count: int) -> None:
    async with asyncio.timeout(60):
        while len(server.connections) != count:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


WHOLE = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"PUT /state/p/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"


@pytest.mark.parametrize("said", [b"", b"G", WHOLE[:-2], BODY, WHOLE, WHOLE + WHOLE[:9]])
async def test_a_peer_without_a_complete_request_is_disconnected(said: bytes) -> None:
    """Also one that was answered, and is connected no longer than another."""
    server = StatusServer("127.0.0.1:0", {"/status": status}, actions={"PUT /state/{n}/{a}": change}, request_s=0.1)
    await server.start()
    try:
        async with silent(server, said) as reader:
            assert (await closed(reader)).count(b"200 OK") == said.startswith(WHOLE)
    finally:
        await server.close()


async def test_page_may_take_longer_than_request_time_limit() -> None:
    async def slow() -> Response:
        (connection,) = server.connections
        return text_response(f"{connection._timer}")

    server = StatusServer("127.0.0.1:0", {"/slow": slow})
    await server.start()
    try:
        assert (await fetch(server, "/slow"))[2] == "None"
    finally:
        await server.close()


async def test_a_peer_that_reads_no_answers_is_disconnected() -> None:
    async def large() -> Response:
        return Response(bytes(16 << 20))

    server = StatusServer("127.0.0.1:0", {"/large": large}, request_s=0.1)
    await server.start()
    try:
        async with silent(server, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"):
            await connections(server, 1)
            await connections(server, 0)
    finally:
        await server.close()


async def test_connection_above_limit_is_closed_until_another_ends() -> None:
    server = StatusServer("127.0.0.1:0", {"/status": status}, connections_max=2)
    await server.start()
    try:
        async with silent(server, b"G"):
            async with silent(server, b"G"):
                await connections(server, 2)
                async with silent(server, WHOLE) as reader:
                    assert await closed(reader) == b""
            await connections(server, 1)
            assert (await fetch(server, "/status"))[0] == 200
    finally:
        await server.close()
