"""Peers that say nothing: which are given up, and which are not."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest
from binlog.http2.frames import PREFACE
from binlog.rpc.session import Timing
from binlog.runtime.http import StatusServer

from tests.integration.binlog.rpc_server import MIB, WAIT_S, path, raw, running, session_of, until
from tests.unit.http2.peer import GREETING, data, headers


async def test_peer_that_answers_no_ping_is_disconnected() -> None:
    timing = Timing(ping_after_s=0.2, ping_timeout_s=0.3)
    async with running(timing=timing) as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, path("Each")))
        await until(lambda: len(server.server._sessions) == 1)
        await asyncio.wait_for(reader.read(1 << 20), WAIT_S)
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(reader.read(1 << 20), WAIT_S):
                pass
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)


async def test_a_peer_that_answers_pings_is_kept() -> None:
    timing = Timing(ping_after_s=0.1, ping_timeout_s=30.0)
    async with running(timing=timing) as server:
        call = server.unary("Wait")(b"x" * 10)
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        await asyncio.sleep(1.5)
        server.handlers.go_on.set()
        assert await call == b"x" * 10


async def test_message_without_new_bytes_is_ended_after_stall_time() -> None:
    timing = Timing(stall_s=0.3)
    async with running(timing=timing) as server, raw(server.port) as (reader, writer):
        for stream_id, name in ((1, "Echo"), (3, "Each")):
            writer.write((GREETING if stream_id == 1 else b"") + headers(stream_id, path(name)))
            writer.write(data(stream_id, struct.pack(">BI", 0, 30 * MIB) + bytes(1000)))
        found = b""
        while found.count(b"no byte of the message") < 2:
            found += await asyncio.wait_for(reader.read(1 << 16), WAIT_S)
        await until(lambda: server.budget.bytes == 0)


@pytest.mark.parametrize("name", ["Echo", "Each"])
async def test_message_below_minimum_rate_is_ended_after_stall_time(name: str) -> None:
    """A byte now and then would hold the room of a large message for ever."""
    timing = Timing(stall_s=600.0)
    async with running(timing=timing) as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(3, path(name)) + data(3, struct.pack(">BI", 0, 30 * MIB) + bytes(1000)))
        await until(lambda: server.budget.bytes == 30 * MIB)
        session = session_of(server, writer)
        call = session._calls[3]
        await until(lambda: call._collector._filled == 1000)  # they may arrive in several reads
        for came in range(call.came + 1, call.came + 10):
            writer.write(data(3, b"x"))
            await until(lambda came=came: call.came == came)  # type: ignore[misc]
            session.tick(call.received_s + timing.stall_s)
            assert not call.over
        session.tick(call.received_s + timing.stall_s + 1)
        answer = await asyncio.wait_for(reader.readuntil(b"came for 600 s"), WAIT_S)
        assert b"less than a 60th of the message came for 600 s" in answer
        await until(lambda: server.budget.bytes == 0)


async def test_silent_stream_without_partial_message_stays_open() -> None:
    async with running(timing=Timing(stall_s=0.2)) as server:
        call = server.stream("Each")
        await call.write(b"a")
        assert await call.read() == b"a"
        await asyncio.sleep(1.0)
        await call.write(b"b")
        assert await call.read() == b"b"
        call.cancel()


async def test_connection_without_complete_preface_is_closed() -> None:
    async with running(timing=Timing(greeting_s=0.3)) as server, raw(server.port) as (reader, writer):
        writer.write(PREFACE[:10])
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""


async def test_exception_in_tick_of_one_session_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are silent; of one the clock fails, and the other is given up all the same. Both must be there at a time."""
    timing = Timing(greeting_s=600.0)
    async with running(timing=timing) as server, raw(server.port) as (one, _), raw(server.port) as (two, _):
        await until(lambda: len(server.server._sessions) == 2)
        monkeypatch.setattr(next(iter(server.server._sessions)), "tick", None)
        for session in server.server._sessions:
            session._opened_s -= 2 * timing.greeting_s
        ends = [asyncio.ensure_future(reader.read()) for reader in (one, two)]
        done, _ = await asyncio.wait(ends, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for end in ends:
            end.cancel()


async def test_http1_connections_leave_connections_to_grpc() -> None:
    pages = StatusServer("", {}, connections_max=2)
    await pages.prepare()
    try:
        async with contextlib.AsyncExitStack() as peers, running(http1=pages.protocol, connections_max=4) as server:
            for number in range(8):
                reader, writer = await peers.enter_async_context(raw(server.port))
                writer.write(b"G")
                if number < 2:
                    await until(lambda number=number: len(server.server._handed_over) > number)  # type: ignore[misc]
                else:
                    with contextlib.suppress(ConnectionResetError):
                        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            assert await server.unary("Echo")(b"x" * 10) == b"x" * 10
    finally:
        await pages.close()
