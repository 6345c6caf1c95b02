"""What a call holds is given back on every way it can end, and nobody is ended for what he did not do."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator

import pytest
from binlog.errors import DecodeError
from binlog.http2.frames import PREFACE
from binlog.pb import pump_ext_pb2
from binlog.rpc import messages
from binlog.rpc.method import Method, Received
from binlog.rpc.session import Timing
from binlog.rpc.status import RpcError, Status
from grpc import StatusCode, aio

from pump.admission import InFlight
from pump.edge import Edge
from pump.ext import IN_FLIGHT_MAX, ExtService
from tests.integration.binlog.test_rpc import GRPC, MIB, WAIT_S, path, raw, running, until
from tests.unit.http2.peer import GREETING, data, headers, parse, settings, window_update


def prefixed(message: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(message)) + message


@pytest.mark.parametrize("last", [prefixed(b"abc", flags=7), struct.pack(">BI", 0, 65 * MIB) + bytes(64)])
async def test_messages_before_one_that_cannot_be_read(last: bytes) -> None:
    """They came whole, in the same frame as what ends the stream; the handler never sees them."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, path("Each")))
        writer.write(data(1, prefixed(bytes(1000)) + prefixed(bytes(2000)) + last))
        await asyncio.wait_for(reader.readuntil(b"grpc-status"), WAIT_S)
        await until(lambda: server.room.bytes == 0)


async def test_no_memory_for_a_message_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(size: int) -> memoryview:
        raise RpcError(Status.UNAVAILABLE, f"no memory for a message of {size} bytes")

    async with running() as server, raw(server.port) as (reader, writer):
        monkeypatch.setattr(messages, "allocate", none)
        writer.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 9 * MIB) + bytes(10)))
        await asyncio.wait_for(reader.readuntil(b"no memory"), WAIT_S)
        await until(lambda: server.room.bytes == 0)


class Stuck:
    """A gate to a store that writes nothing until it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.writing = 0

    async def write(self, _store: object, _method: str, _cluster_id: int, payloads: list[bytes]) -> list[None]:
        self.writing += 1
        await self.go_on.wait()
        return [None] * len(payloads)


def _batch(number: int) -> bytes:
    encoded: bytes = pump_ext_pb2.WriteBatchReq(batch_id=number, payloads=[bytes(1000)]).SerializeToString()
    return encoded


async def _stuck() -> tuple[Edge, InFlight, Stuck]:
    room, gate = InFlight(), Stuck()
    service = ExtService(None, gate, room, node_id="a", state=str).service()  # type: ignore[arg-type]
    edge = Edge([service], in_flight=room)
    await edge.start("127.0.0.1:0")
    return edge, room, gate


async def test_a_stream_cancelled_with_more_batches_than_may_be_under_way() -> None:
    edge, room, gate = await _stuck()
    async with aio.insecure_channel(f"127.0.0.1:{edge.port}") as channel:
        call = channel.stream_stream("/binlog.ext.PumpExt/WriteBatch")()
        for number in range(IN_FLIGHT_MAX + 20):
            await call.write(_batch(number))
        await until(lambda: gate.writing == IN_FLIGHT_MAX and room.bytes >= (IN_FLIGHT_MAX + 20) * 1000)
        call.cancel()
        await until(lambda: room.bytes <= IN_FLIGHT_MAX * 1100)
        gate.go_on.set()
        await until(lambda: room.bytes == 0)
    await edge.stop(0)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_stream_that_ends_before_its_requests(cancelled: bool, caplog: pytest.LogCaptureFixture) -> None:
    """For a batch that is none the status says so; neither that nor a cancelled stream is a mistake of the server."""
    edge, room, gate = await _stuck()
    gate.go_on.set()
    async with aio.insecure_channel(f"127.0.0.1:{edge.port}") as channel:
        call = channel.stream_stream("/binlog.ext.PumpExt/WriteBatch")()
        await call.write(_batch(1))
        assert pump_ext_pb2.WriteBatchResp.FromString(await call.read()).batch_id == 1
        if cancelled:
            call.cancel()
        else:
            await call.write(b"\xff\xff\xff")
            assert await call.code() is StatusCode.INVALID_ARGUMENT
    (session,) = edge._server._sessions or [None]
    await until(lambda: session is None or session.is_idle)
    await edge.stop(0)
    assert room.bytes == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_deadline_passes_while_answers_wait_for_their_reader() -> None:
    """They are not kept for a peer that opens no window: nobody counts them any more."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + settings(INITIAL_WINDOW_SIZE=0))
        writer.write(headers(1, (*path("Many"), ("grpc-timeout", "1S"))) + data(1, prefixed(b"4 9000000"), end=True))
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        (session,) = server.server._sessions
        await until(lambda: not session._connection._streams)
        assert session._connection.waiting_bytes(1) == 0
        found = b""
        while not any(frame.kind == 3 for frame in parse_whole(found)):
            found += await asyncio.wait_for(reader.read(1 << 16), WAIT_S)


def parse_whole(found: bytes) -> list[object]:
    try:
        return list(parse(found))
    except (AssertionError, struct.error):
        return []


async def test_a_stream_whose_window_was_closed_has_time_again() -> None:
    """It waited for room longer than a message may stall; then its bytes are asked for, not missed."""
    timing = Timing(stall_s=2.0)
    async with running(room=InFlight(10 * MIB), timing=timing) as server, raw(server.port) as (reader, writer):
        first = server.unary("Wait")(bytes(9 * MIB))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        async with raw(server.port) as (_, other):
            other.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 4 * MIB)))
            await until(lambda: server.room.bytes == 13 * MIB)
            writer.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 2 * MIB)))
            keep = asyncio.create_task(drip(other))
            await asyncio.sleep(3.0)  # longer than stall_s
            keep.cancel()
            server.handlers.go_on.set()
            await first
            await asyncio.sleep(0.6)  # two ticks of the clock
            for at in range(0, 2 * MIB, 16384):
                writer.write(data(1, bytes(16384 - 20) + b"it has come at last!"))
                await writer.drain()
                assert at >= 0
            await asyncio.wait_for(reader.readuntil(b"it has come at last!"), WAIT_S)


async def drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(data(1, b"x"))
        await asyncio.sleep(0.2)


async def test_what_was_on_its_way_to_refused_calls_is_no_attack() -> None:
    """Many large writes are refused for want of room: each has sent a window's worth before it knows."""
    async with running(room=InFlight(10 * MIB)) as server, raw(server.port) as (reader, writer):
        first = server.unary("Wait")(bytes(10 * MIB))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        reading = asyncio.create_task(reader.read(-1))
        writer.write(GREETING)
        for number in range(400):
            stream_id = 2 * number + 1
            writer.write(headers(stream_id, GRPC) + data(stream_id, struct.pack(">BI", 0, 5 * MIB)))
            for _ in range(63):
                writer.write(data(stream_id, bytes(100)))
            await writer.drain()
        writer.write(headers(801, path("Nothing"), end=True))
        writer.write(frame_ping())
        await until(lambda: server_last(server) >= 801 or reading.done())
        assert not reading.done()
        reading.cancel()
        server.handlers.go_on.set()
        await first


def frame_ping() -> bytes:
    return b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)


def server_last(server: object) -> int:
    return max((session._connection._last_id for session in server.server._sessions), default=0)  # type: ignore[attr-defined]
