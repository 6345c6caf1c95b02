"""How a server ends."""

from __future__ import annotations

import asyncio
import struct

from grpc import StatusCode

from tests.integration.binlog.rpc_server import GRPC, WAIT_S, path, raw, refused, running
from tests.unit.http2.peer import GREETING, data, frame, headers


async def test_server_stop_waits_for_running_calls() -> None:
    async with running() as server:
        call = server.unary("Wait")(b"0123456789", timeout=WAIT_S)
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        stopping = asyncio.create_task(server.server.stop(WAIT_S))
        await asyncio.sleep(0.1)
        assert not stopping.done()
        server.handlers.go_on.set()
        assert await call == b"0123456789"
        await asyncio.wait_for(stopping, WAIT_S)


async def test_server_stop_refuses_new_calls_on_open_connections() -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, path("Wait")) + data(1, b"\0\0\0\0\0", end=True))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        stopping = asyncio.create_task(server.server.stop(WAIT_S))
        await asyncio.wait_for(reader.readuntil(b"the server is stopping"), WAIT_S)
        writer.write(headers(3, GRPC) + data(3, b"\0\0\0\0\0", end=True))
        refused_stream = frame(3, struct.pack(">I", 7), stream_id=3)
        await asyncio.wait_for(reader.readuntil(refused_stream), WAIT_S)
        server.handlers.go_on.set()
        await asyncio.wait_for(stopping, WAIT_S)


async def test_server_stop_ends_calls_after_grace() -> None:
    async with running() as server:
        call = server.unary("Wait")(b"", timeout=WAIT_S)
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        await asyncio.wait_for(server.server.stop(0.1), WAIT_S)
        code, text = await refused(call)
        assert (code, text) == (StatusCode.UNAVAILABLE, "the server is stopping")
        assert server.handlers.ended.is_set()
