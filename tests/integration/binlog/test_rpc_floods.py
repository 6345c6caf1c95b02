"""Peers that mean harm, on a socket: they are cut off, memory stays within bounds, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable, Iterator

import pytest
from binlog.http2 import frames

from tests.integration.binlog.rpc_server import GRPC, MIB, WAIT_S, path, raw, running, until
from tests.unit.http2.peer import GREETING, block, data, frame, headers, parse, rst, settings, window_update

ROUND = 500


def pings(_number: int) -> bytes:
    return frame(frames.PING, bytes(8))


def resets(number: int) -> bytes:
    return headers(2 * number + 1, path("Wait")) + data(2 * number + 1, b"\0\0\0\0\0", end=True) + rst(2 * number + 1)


def continuations(number: int) -> bytes:
    kind = frames.CONTINUATION if number else frames.HEADERS
    return frame(kind, b"" if number else block(GRPC), stream_id=1)


def windows(number: int) -> bytes:
    return settings(INITIAL_WINDOW_SIZE=number % 2) + window_update(0, 1)


def bombs(number: int) -> bytes:
    """A large field for the table, then blocks that name it again and again."""
    field = b"\x40\x01x\x7f\xb1\x16" + b"a" * 2992
    named = b"\xbe" * 1000
    stream_id = 2 * number + 1
    return frame(
        frames.HEADERS, block(GRPC, size_update=False) + (named if number else field), flags=4, stream_id=stream_id
    )


def half_calls(number: int) -> bytes:
    """Messages that are announced and never come."""
    return headers(2 * number + 1, path("Echo")) + data(2 * number + 1, b"\0\0\0\x40\0")


FLOODS: dict[str, tuple[Callable[[int], bytes], str]] = {
    "pings": (pings, "too many frames that make no progress"),
    "rapid resets": (resets, "too many frames that make no progress"),
    "CONTINUATION without end": (continuations, "a header block is too large, or in too many frames"),
    "windows opened and closed": (windows, "too many frames that make no progress"),
    "header bombs": (bombs, "header fields: "),
}


def rounds(make: Callable[[int], bytes], count: int, each: int) -> Iterator[bytes]:
    """Many at once: the budget of a connection grows with time, and the machine may be slow."""
    for first in range(0, count, each):
        yield b"".join(make(number) for number in range(first, min(count, first + each)))


async def read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(MIB):
            pass


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_cut_off_and_others_are_served(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Why is read in the log: the flood may still be on its way, and then TCP takes back what was said last."""
    make, reason = FLOODS[name]
    async with running() as server, raw(server.port) as (reader, writer):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert await server.unary("Echo")(b"before", timeout=WAIT_S) == b"before"
        writer.write(GREETING)
        end = asyncio.create_task(read_all(reader))
        with contextlib.suppress(ConnectionError):
            for sent in rounds(make, 200_000, 5000):
                writer.write(sent)
                await writer.drain()
                assert await server.unary("Echo")(b"during", timeout=WAIT_S) == b"during"
                if end.done():
                    break
        await asyncio.wait_for(end, WAIT_S)
        assert any(reason in record.getMessage() for record in caplog.records), caplog.text
        assert await server.unary("Echo")(b"after", timeout=WAIT_S) == b"after"
        await until(lambda: server.budget.bytes == 0 and len(server.server._sessions) == 1)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 200 * MIB


async def test_pings_with_every_answer_are_no_flood() -> None:
    """gRPC's clients measure the line with a ping for each answer: five a call here, twice as many as a client may send
    that does nothing else."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + window_update(0, (1 << 31) - 1 - 65535))
        said = b""
        for first in range(0, 4000, ROUND):
            for number in range(first, first + ROUND):
                stream_id = 2 * number + 1
                call = headers(stream_id, GRPC) + data(stream_id, b"\0\0\0\0\1x", end=True)
                writer.write(call + pings(number) * 5)
            while said.count(b"grpc-status\x010") < first + ROUND:
                said += await asyncio.wait_for(reader.read(MIB), WAIT_S)
        writer.write(frame(frames.PING, b"the last"))
        said += await asyncio.wait_for(reader.readuntil(b"the last"), WAIT_S)
        assert [each.kind for each in parse(said)].count(frames.PING) == 20_001


async def test_calls_without_messages_hold_no_more_than_stream_limit() -> None:
    """As many streams as there may be, each with a message announced; what is above the limit of bytes is refused."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING)
        reading = asyncio.create_task(read_all(reader))
        for sent in rounds(half_calls, 6_000, ROUND):
            writer.write(sent)
            await writer.drain()
            assert len(server.server._sessions) == 1 or reading.done()
        assert await server.unary("Echo")(b"x", timeout=WAIT_S) == b"x"
        for session in server.server._sessions:
            assert len(session._calls) <= server.settings.limits.streams_max
        writer.transport.abort()
        await until(lambda: server.budget.bytes == 0)
        reading.cancel()
