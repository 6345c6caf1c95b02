"""The drainer's address: gRPC and HTTP/1 on one port, plain and over TLS, without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.pb import cistern_pb2
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.http import Request, Response, StatusServer, put, text_response
from binlog.runtime.security import Security
from grpc import StatusCode, aio

from drainer.service.daemon import STOP_S, cistern_server
from tests.support.certificates import Authority

WAIT_S = 60.0


async def _page() -> Response:
    return text_response("a page")


async def _change(request: Request) -> Response:
    return text_response(f"{request.path['node_id']} is asked to {request.path['action']}")


@contextlib.asynccontextmanager
async def serving(security: Security | None = None) -> AsyncIterator[str]:
    """The address."""
    security = security or Security()
    pages = StatusServer("", {"/status": _page}, actions={"PUT /state/{node_id}/{action}": _change}, security=security)
    await pages.prepare()
    server = cistern_server(security, pages)
    await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(STOP_S)
        await pages.close()


async def notify(addr: str, security: Security | None = None) -> None:
    channel = open_channel(addr, security)
    try:
        await stub_of(channel, cistern_pb2.DESCRIPTOR, "Cistern").Notify(cistern_pb2.NotifyReq(), timeout=WAIT_S)
    finally:
        await channel.close()


async def get(addr: str, path: str, context: ssl.SSLContext | None = None) -> tuple[bytes, str | None]:
    """(answer to a GET of HTTP/1, the protocol agreed on by ALPN)."""
    host, _, port = addr.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        tls = writer.get_extra_info("ssl_object")
        return await asyncio.wait_for(reader.read(), WAIT_S), tls and tls.selected_alpn_protocol()
    finally:
        writer.close()


async def test_drainer_address_serves_grpc_and_http1() -> None:
    async with serving() as addr:
        await notify(addr)
        assert b"a page" in (await get(addr, "/status"))[0]
        assert b"# HELP" in (await get(addr, "/metrics"))[0]
        assert await put(addr, "/state/d1/pause") == b"d1 is asked to pause"
        assert b"404" in (await get(addr, "/nothing"))[0]
        channel = open_channel(addr)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub_of(channel, cistern_pb2.DESCRIPTOR, "Cistern").DumpDDLJobs(
                cistern_pb2.DumpDDLJobsReq(), timeout=WAIT_S
            )
        assert caught.value.code() is StatusCode.UNIMPLEMENTED
        await channel.close()


async def test_drainer_address_over_tls_checks_client_names_with_and_without_alpn(tmp_path: Path) -> None:
    """S-01, S-03. Clients that say by ALPN what they speak, and such that say nothing."""
    authority = Authority(tmp_path)
    pairs = {name: authority.issue(name) for name in ("drainer", "pump", "stranger")}
    sides = {name: Security(str(authority.ca), str(pair.cert), str(pair.key)) for name, pair in pairs.items()}
    own = Security(str(authority.ca), str(pairs["drainer"].cert), str(pairs["drainer"].key), ("pump",))
    async with serving(own) as addr:
        await notify(addr, sides["pump"])
        with pytest.raises(aio.AioRpcError, match="client certificate authentication failed") as caught:
            await notify(addr, sides["stranger"])
        assert caught.value.code() is StatusCode.UNAUTHENTICATED
        for offered, agreed in (((), None), (("http/1.1",), "http/1.1"), (("h2", "http/1.1"), "h2")):
            context = sides["pump"].ssl_context(server=False, protocols=offered)
            answer, found = await get(addr, "/status", context)
            assert (b"a page" in answer, found) == (True, agreed)
        assert await put(addr, "/state/d1/close", security=sides["pump"]) == b"d1 is asked to close"
        refused = await put(addr, "/state/d1/close", security=sides["stranger"])
        assert b"client certificate authentication failed" in refused
        with pytest.raises(aio.AioRpcError):  # without TLS
            await notify(addr)


async def test_drainer_address_in_use_is_refused_by_name() -> None:
    async with serving() as addr:
        pages = StatusServer("", {})
        await pages.prepare()
        with pytest.raises(ConfigError, match=f"addr {addr}: cannot listen there: .*in use"):
            await cistern_server(Security(), pages).start(addr)
        await pages.close()
