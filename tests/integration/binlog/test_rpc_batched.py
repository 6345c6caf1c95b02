"""Methods that answer without a task for each call: every way such a call can end."""

from __future__ import annotations

import asyncio
import gzip
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from binlog.errors import BinlogError
from binlog.http2.frames import PING, RST_STREAM
from binlog.http2.limits import ConnectionLimits
from binlog.rpc.session import Timing
from grpc import Compression, StatusCode, aio

from pump.rpc.admission import InFlight
from tests.integration.binlog.rpc_server import WAIT_S, Running, path, raw, refused, running, until
from tests.unit.http2.peer import GREETING, data, frame, headers, parse, under_way


async def taken(server: Running, count: int) -> None:
    await until(lambda: len(server.handlers.taken) == count)


async def test_batched_unary_calls_may_be_answered_in_any_order() -> None:
    """Each gets its own; errors have their status; what a request holds is held until it is answered."""
    async with running() as server:
        calls = [server.unary("Later")(b"%d" % number) for number in range(3)]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await taken(server, 3)
        assert server.budget.bytes == 3
        by_request = dict(server.handlers.taken)
        assert by_request[b"2"](b"two") and by_request[b"1"](BinlogError("no")) and by_request[b"0"](ValueError("oh"))
        found: list[Any] = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)
        assert found[2] == b"two"
        assert [(error.code(), error.details()) for error in found[:2]] == [
            (StatusCode.UNKNOWN, "unexpected ValueError; see the server's log"),
            (StatusCode.ABORTED, "no"),
        ]
        assert server.budget.bytes == 0
        assert not by_request[b"2"](b"again"), "only once"


async def test_batched_unary_call_may_be_refused_at_once() -> None:
    async with running() as server:
        assert await refused(server.unary("Later")(b"refused")) == (StatusCode.ABORTED, "refused at once")
        await until(lambda: server.budget.bytes == 0)


async def test_batched_unary_call_cancelled_by_responder_has_status_cancelled() -> None:
    async with running() as server:
        call = asyncio.ensure_future(server.unary("Later")(b"a"))
        await taken(server, 1)
        server.handlers.taken[0][1](asyncio.CancelledError())
        assert await refused(call) == (StatusCode.CANCELLED, "the call was cancelled")


async def test_compressed_request_is_given_to_responder_when_it_is_plain() -> None:
    """A large one is decompressed in a thread. Its plain size is held, too, until it is answered."""
    async with running() as server:
        call = server.unary("Later")(b"refused", compression=Compression.Gzip)
        assert await refused(call) == (StatusCode.ABORTED, "refused at once")
        call = server.unary("Later")(bytes(1 << 20), compression=Compression.Gzip)
        await taken(server, 1)
        (session,) = server.server._sessions
        await until(lambda: all(each._task is None for each in session._calls.values()))
        request, answer = server.handlers.taken[0]
        assert request == bytes(1 << 20) and server.budget.bytes > 1 << 20 and not session.is_idle
        assert answer(b"answer")
        assert await asyncio.wait_for(call, WAIT_S) == b"answer"
        assert server.budget.bytes == 0 and session.is_idle


def cancel(call: Any, _server: Running) -> None:
    call.cancel()


def part(_call: Any, server: Running) -> None:
    (session,) = server.server._sessions
    assert session.transport is not None
    session.transport.abort()


@pytest.mark.parametrize("leave", [cancel, part])
@pytest.mark.parametrize("found", [b"answer", BinlogError("no")])
async def test_ended_call_holds_budget_until_responder_is_done(
    leave: Callable[[Any, Running], None], found: bytes | BinlogError
) -> None:
    """His request is held until the handler has done with it; then all of it is given back, and nothing is sent."""
    async with running() as server:
        call = server.unary("Later")(bytes(1000))
        await taken(server, 1)
        (session,) = server.server._sessions
        leave(call, server)
        whole = session.connection._streams.whole
        await until(lambda: not whole and all(each.over for each in session._calls.values()))
        assert server.budget.bytes == 1000 and not session.is_idle
        assert not server.handlers.taken[0][1](found)
        assert server.budget.bytes == 0 and session.is_idle
        with pytest.raises((asyncio.CancelledError, aio.AioRpcError)):
            await call


async def test_batched_unary_call_after_deadline_ends_and_late_answer_is_dropped() -> None:
    async with running() as server:
        call = asyncio.ensure_future(server.unary("Later")(b"abc", timeout=WAIT_S))
        await taken(server, 1)
        (session,) = server.server._sessions
        session.tick(time.monotonic() + WAIT_S)
        assert (await refused(call))[0] is StatusCode.DEADLINE_EXCEEDED
        assert server.budget.bytes == 3 and not session.is_idle
        assert not server.handlers.taken[0][1](b"too late")
        assert server.budget.bytes == 0 and session.is_idle


async def test_batched_unary_call_is_not_ended_as_stalled_while_responder_works() -> None:
    """A peer that has sent all owes nothing: the call is not ended as one that stalls."""
    async with running(timing=Timing(stall_s=1.0)) as server:
        call = asyncio.ensure_future(server.unary("Later")(b"a"))
        await taken(server, 1)
        (session,) = server.server._sessions
        session.tick(time.monotonic() + 10)
        assert server.handlers.taken[0][1](b"b")
        assert await asyncio.wait_for(call, WAIT_S) == b"b"


async def test_invalid_request_is_not_given_to_responder() -> None:
    """A second message, a torn one: the handler never sees them."""
    message = struct.pack(">BI", 0, 3) + b"abc"
    for body in (message + message, message[:-1], gzip.compress(b"")):
        async with running() as server, raw(server.port) as (reader, writer):
            writer.write(GREETING + headers(1, path("Later")) + data(1, body, end=True))
            await asyncio.wait_for(reader.readuntil(b"grpc-status"), WAIT_S)
            assert server.handlers.taken == [] and server.budget.bytes == 0


async def test_stopping_server_waits_for_batched_unary_calls() -> None:
    async with running() as server:
        call = asyncio.ensure_future(server.unary("Later")(b"a"))
        await taken(server, 1)
        stopping = asyncio.create_task(server.server.stop(WAIT_S))
        await asyncio.sleep(0)
        assert server.handlers.taken[0][1](b"b")
        assert await asyncio.wait_for(call, WAIT_S) == b"b"
        await asyncio.wait_for(stopping, WAIT_S)


async def test_server_stop_without_grace_ends_batched_unary_calls() -> None:
    async with running() as server:
        call = asyncio.ensure_future(server.unary("Later")(b"a"))
        await taken(server, 1)
        await server.server.stop(0)
        assert (await refused(call))[0] is StatusCode.UNAVAILABLE
        assert not server.handlers.taken[0][1](b"b")
        assert server.budget.bytes == 0


def call(stream_id: int, body: bytes, name: str = "Later") -> bytes:
    message = struct.pack(">BI", 0, len(body)) + body
    return headers(stream_id, (*path(name), ("grpc-timeout", "15S"))) + data(stream_id, message, end=True)


async def answered(reader: asyncio.StreamReader, count: int) -> bytes:
    """What the server sent up to so many statuses."""
    found = b""
    while found.count(b"grpc-status") < count:
        piece = await asyncio.wait_for(reader.read(1 << 16), WAIT_S)
        assert piece, f"the connection was closed after {found!r}"
        found += piece
    return found


async def test_batched_unary_calls_that_arrive_together_are_answered_together() -> None:
    """Each with its own deadline and bytes; one that was cancelled before is held until its handler has done with
    it."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + call(1, b"first"))
        await taken(server, 1)
        assert server.handlers.taken[0][1](b"1")
        await answered(reader, 1)
        reset = frame(RST_STREAM, struct.pack(">I", 8), stream_id=5)
        writer.write(call(3, b"a") + call(5, b"bb") + call(7, b"ccc") + reset + call(9, b"", "Echo"))
        await taken(server, 4)
        (session,) = server.server._sessions
        assert [request for request, _ in server.handlers.taken[1:]] == [b"a", b"bb", b"ccc"]
        assert server.budget.bytes == 6 and len(session._batched) == 3
        assert [answer(b"x") for _, answer in server.handlers.taken[1:]] == [True, False, True]
        assert server.budget.bytes == 0
        found = await answered(reader, 3)
        ended = {each.stream_id for each in parse(found[: found.rindex(b"grpc-status") + 13]) if each.flags & 1}
        assert ended == {3, 7, 9}
        await until(lambda: session.is_idle)


@pytest.mark.parametrize("together", [False, True])
async def test_batched_unary_call_without_memory_budget_is_refused_and_connection_stays(together: bool) -> None:
    async with running(budget=InFlight(100)) as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + call(1, b"first"))
        await taken(server, 1)
        server.handlers.taken[0][1](b"1")
        await answered(reader, 1)
        writer.write(call(3, bytes(90)))
        await taken(server, 2)
        writer.write(call(5, bytes(90)) + (call(7, bytes(90)) if together else b""))
        assert b"grpc-status\x0210" in await answered(reader, 1 + together)
        assert server.budget.bytes == 90 and len(server.handlers.taken) == 2
        assert server.handlers.taken[1][1](b"x")
        await answered(reader, 1)
        assert server.budget.bytes == 0


async def test_ping_is_answered_while_responder_works() -> None:
    """Also where the handler takes its time, and where its connection has nothing to say."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + call(1, b"first"))
        await taken(server, 1)
        server.handlers.taken[0][1](b"1")
        await answered(reader, 1)
        for sent in (call(3, b"a") + frame(PING, b"abcdefgh"), frame(PING, b"ijklmnop")):
            writer.write(sent)
            wanted = sent[-8:]
            assert wanted in await asyncio.wait_for(reader.readuntil(wanted), WAIT_S)
        assert server.handlers.taken[1][1](b"x")
        await answered(reader, 1)


async def test_deadline_ends_one_of_several_batched_unary_calls() -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + call(1, b"first"))
        await taken(server, 1)
        server.handlers.taken[0][1](b"1")
        await answered(reader, 1)
        short = headers(5, (*path("Later"), ("grpc-timeout", "1S"))) + data(5, bytes(5), end=True)
        writer.write(call(3, b"a") + short)
        await taken(server, 3)
        assert b"grpc-status\x014" in await answered(reader, 1)
        assert server.handlers.taken[1][1](b"x") and not server.handlers.taken[2][1](b"x")
        await answered(reader, 1)


async def test_call_header_without_data_counts_as_call_until_stall_time() -> None:
    """It is a call: a server that stops knows of it."""
    async with running(timing=Timing(stall_s=600.0)) as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + call(1, b"first"))
        await taken(server, 1)
        server.handlers.taken[0][1](b"1")
        await answered(reader, 1)
        whole = call(3, b"late")
        writer.write(whole[:-14])
        (session,) = server.server._sessions
        await until(lambda: 3 in session._calls)
        writer.write(whole[-14:])
        await taken(server, 2)
        assert server.handlers.taken[1][1](b"x")
        await answered(reader, 1)
        writer.write(call(5, b"never")[:-14])
        await until(lambda: 5 in session._calls)
        session._calls[5].received_s -= 2 * 600
        assert b"no byte of the message came" in await answered(reader, 1)


async def test_plain_http_request_with_known_header_is_refused_and_window_returned() -> None:
    """It is answered as the first one was: come whole, its data late, or cancelled in between; and its bytes are given
    back to the peer."""
    fields = tuple(field for field in path("Later") if field[0] != "content-type")
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, fields) + data(1, b"plain", end=True))
        found = b""
        while b"this address serves gRPC" not in found:
            found += await asyncio.wait_for(reader.read(1 << 16), WAIT_S)
        (session,) = server.server._sessions
        connection = session.connection
        writer.write(headers(5, fields) + headers(7, fields))
        await until(lambda: set(session._no_grpc) == {5, 7})
        writer.write(frame(RST_STREAM, struct.pack(">I", 8), stream_id=7) + data(5, b"late", end=True))
        writer.write(headers(9, fields) + data(9, b"whole", end=True))
        found = b""
        while found.count(b"this address serves gRPC") < 2:
            piece = await asyncio.wait_for(reader.read(1 << 16), WAIT_S)
            assert piece
            found += piece
        await until(lambda: not under_way(connection))
        assert session._no_grpc == {} and server.handlers.taken == []
        assert connection._window.left + connection._window.credit == ConnectionLimits().connection_window_bytes
