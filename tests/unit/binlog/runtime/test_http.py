"""The status server over real HTTP, and the metrics it shows."""

from __future__ import annotations

import ssl
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


async def test_pages(server: StatusServer) -> None:
    assert await fetch(server, "/status") == (
        200,
        "application/json; charset=utf-8",
        '{"ErrMsg":"","Checkpoint":{}}\n',
    )
    assert (await fetch(server, "/none"))[0] == 404
    assert (await fetch(server, "/status", "DELETE"))[0] == 405


async def test_actions_see_the_path_and_the_body(server: StatusServer) -> None:
    found = await fetch(server, "/state/pump-1%3A8250/pause", "PUT", data=b"x")
    assert found[2] == "PUT pump-1:8250 pause b'x'"
    assert (await fetch(server, "/state/p/pause", "PUT", data=b"x" * (2 << 20)))[0] == 413


async def test_errors_are_answers(server: StatusServer) -> None:
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


async def test_allowed_names_guard_pages(tmp_path: Path) -> None:
    """cert-allowed-cn over HTTP (S-03)."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    settings = Security(str(authority.ca), str(pair.cert), str(pair.key), ("good",))
    server = StatusServer("127.0.0.1:0", {"/status": status}, security=settings)
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
    await server.close()


async def test_a_put_to_another_over_tls(tmp_path: Path) -> None:
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


async def test_metrics_keep_upstreams_names(server: StatusServer) -> None:
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
def test_json_is_compact(document: dict[str, int]) -> None:
    assert b": " not in json_response({}).body
    assert json_response(document).body.decode("utf-8", "surrogatepass")


def test_indented_json_and_html() -> None:
    assert json_response({"code": 200}, indent=4).body == b'{\n    "code": 200\n}'
    assert html_response("<p>").content_type == "text/html; charset=utf-8"
