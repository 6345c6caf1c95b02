"""What a call holds is given back on every way it can end, and nobody is ended for what he did not do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from typing import Any

import pytest
from binlog.http2.frames import Code
from binlog.pb import pump_ext_pb2
from binlog.rpc import messages
from binlog.rpc.call import BidiCall, Call
from binlog.rpc.session import Timing
from binlog.rpc.status import RpcError, Status
from grpc import StatusCode, aio

from pump.rpc.admission import InFlight
from pump.rpc.extension_service import IN_FLIGHT_MAX, PAYLOAD_BYTES, ExtService
from pump.rpc.methods import PumpListener
from tests.integration.binlog.rpc_server import MIB, WAIT_S, Running, path, raw, running, session_of, until
from tests.unit.http2.peer import GREETING, data, headers, rst, settings, window_update

PING = b"\0\0\x08\x06\0\0\0\0\0" + b"12345678"


def prefixed(message: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(message)) + message


LAST = {"unknown flags": prefixed(b"abc", flags=7), "too long": struct.pack(">BI", 0, 65 * MIB) + bytes(64)}


@pytest.mark.parametrize("name", LAST)
async def test_messages_before_unreadable_one_release_memory_budget(name: str) -> None:
    """They came whole, in the same frame as what ends the stream; the handler never sees them."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, path("Each")))
        writer.write(data(1, prefixed(bytes(1000)) + prefixed(bytes(2000)) + LAST[name]))
        await asyncio.wait_for(reader.readuntil(b"grpc-status"), WAIT_S)
        await until(lambda: server.budget.bytes == 0)


async def test_failed_allocation_for_streamed_message_is_answered_and_releases_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(size: int) -> memoryview:
        raise RpcError(Status.UNAVAILABLE, f"no memory for a message of {size} bytes")

    async with running() as server, raw(server.port) as (reader, writer):
        monkeypatch.setattr(messages, "allocate", none)
        writer.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 9 * MIB) + bytes(10)))
        await asyncio.wait_for(reader.readuntil(b"no memory"), WAIT_S)
        await until(lambda: server.budget.bytes == 0)


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


async def _stuck() -> tuple[PumpListener, InFlight, Stuck]:
    budget, gate = InFlight(), Stuck()
    service = ExtService(None, gate, budget, node_id="a", state=str).service()  # type: ignore[arg-type]
    listener = PumpListener([service], in_flight=budget)
    await listener.start("127.0.0.1:0")
    return listener, budget, gate


async def test_cancelled_stream_with_too_many_batches_releases_memory_budget() -> None:
    listener, budget, gate = await _stuck()
    async with aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        call: Any = channel.stream_stream("/binlog.ext.PumpExt/WriteBatch")()
        for number in range(IN_FLIGHT_MAX + 20):
            await call.write(_batch(number))
        objects = IN_FLIGHT_MAX * PAYLOAD_BYTES
        await until(lambda: gate.writing == IN_FLIGHT_MAX and budget.bytes >= objects + (IN_FLIGHT_MAX + 20) * 1000)
        call.cancel()
        await until(lambda: budget.bytes <= objects + IN_FLIGHT_MAX * 1100)
        gate.go_on.set()
        await until(lambda: budget.bytes == 0)
    await listener.stop(0)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_stream_ended_early_releases_budget_and_logs_no_error(
    cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """For a batch that is none the status says so; neither that nor a cancelled stream is a mistake of the server."""
    listener, budget, gate = await _stuck()
    gate.go_on.set()
    async with aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        call: Any = channel.stream_stream("/binlog.ext.PumpExt/WriteBatch")()
        await call.write(_batch(1))
        assert pump_ext_pb2.WriteBatchResp.FromString(await call.read()).batch_id == 1
        if cancelled:
            call.cancel()
        else:
            await call.write(b"\xff\xff\xff")
            assert await call.code() is StatusCode.INVALID_ARGUMENT
    (session,) = listener._sessions or [None]
    await until(lambda: session is None or session.is_idle)
    await listener.stop(0)
    assert budget.bytes == 0
    ours = [record for record in caplog.records if record.name.startswith("tidb_binlog")]  # not what earlier tests left
    assert [record for record in ours if record.levelno >= logging.ERROR] == []


async def test_answers_of_expired_call_are_dropped_for_peer_without_window() -> None:
    """They are not kept for a peer that opens no window: nobody counts them any more."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + settings(INITIAL_WINDOW_SIZE=0))
        writer.write(headers(1, (*path("Many"), ("grpc-timeout", "1S"))) + data(1, prefixed(b"4 9000000"), end=True))
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        (session,) = server.server._sessions
        await until(lambda: not session.connection._streams.general)
        assert session.connection.waiting_bytes(1) == 0
        found = b""
        while rst(1, Code.CANCEL) not in found:
            found += await asyncio.wait_for(reader.read(1 << 16), WAIT_S)


async def test_stall_time_of_stream_restarts_when_its_window_opens() -> None:
    """It waited for room longer than a message may stall; then its bytes are asked for, not missed."""
    timing = Timing(stall_s=600.0)
    async with running(budget=InFlight(10 * MIB), timing=timing) as server, raw(server.port) as (reader, writer):
        first = server.unary("Wait")(bytes(9 * MIB))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        async with raw(server.port) as (_, other):
            other.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 4 * MIB)))
            await until(lambda: server.budget.bytes == 13 * MIB)
            writer.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 2 * MIB)))
            await until(lambda: bool(blocked(server)))
            (call,) = blocked(server)
            session = session_of(server, writer)
            assert session._calls[1] is call and not call.is_stalled, "it has no window"
            call.received_s -= 2 * timing.stall_s
            session.tick(time.monotonic())
            assert not call.over
            server.handlers.go_on.set()
            await first
            await until(lambda: call.is_stalled)
            session.tick(time.monotonic())
            assert not call.over, "its time begins when its window opens"
            for _ in range(2 * MIB // 16384):
                writer.write(data(1, bytes(16384 - 20) + b"it has come at last!"))
                await writer.drain()
            await asyncio.wait_for(reader.readuntil(b"it has come at last!"), WAIT_S)


def blocked(server: Running) -> list[BidiCall]:
    """The calls that wait for room for a message."""
    calls = [call for session in server.server._sessions for call in session._calls.values()]
    return [call for call in calls if isinstance(call, BidiCall) and call._receiving.blocked]


async def test_connection_accepted_after_server_stop_is_closed() -> None:
    """Nobody would end its calls any more."""
    async with running() as server:
        call = server.unary("Wait")(b"0123456789", timeout=WAIT_S)
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        stopping = asyncio.create_task(server.server.stop(WAIT_S))
        await asyncio.sleep(0)
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(server.server._session, ours)
            await until(transport.is_closing)
        server.handlers.go_on.set()
        assert await call == b"0123456789"
        await asyncio.wait_for(stopping, WAIT_S)


async def test_ping_wakes_no_blocked_sender_and_window_update_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ping to a connection with many blocked streams costs what a ping costs."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + settings(INITIAL_WINDOW_SIZE=0))
        for number in range(50):
            stream_id = 2 * number + 1
            writer.write(headers(stream_id, path("Many")) + data(stream_id, prefixed(b"4 300000"), end=True))
        await until(lambda: bool(server.server._sessions))
        (session,) = server.server._sessions
        await until(lambda: len(session._senders) == 50)
        woken: list[int] = []

        def on_sent(call: Call) -> None:
            woken.append(call.stream_id)
            assert call._sent is not None
            call._sent.set()

        monkeypatch.setattr(Call, "on_sent", on_sent)
        writer.write(PING)
        await asyncio.wait_for(reader.readuntil(PING[:4] + b"\1"), WAIT_S)
        assert woken == []
        writer.write(window_update(1, 200_000) + window_update(0, 200_000))
        await until(lambda: server.handlers.yielded == 1 and woken == [1])


async def test_handed_over_http1_connections_count_towards_connections_max() -> None:
    """Each is an open file, whatever it speaks; one that is gone makes room."""
    many = running(connections_max=2, http1=asyncio.Protocol)
    async with many as server, raw(server.port) as (_, one), raw(server.port) as (_, two):
        rpc = server.server
        for count, writer in ((1, one), (2, two)):
            writer.write(b"GET / HTTP/1.1\r\n")
            await until(lambda count=count: len(rpc._handed_over) == count)  # type: ignore[misc]
        async with raw(server.port) as (reader, _):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        one.transport.abort()
        await until(lambda: len(rpc._handed_over) == 1)
        assert await server.unary("Echo")(b"x", timeout=WAIT_S, wait_for_ready=True) == b"x"
