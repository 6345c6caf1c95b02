"""What a server holds for its peers: messages that come, and answers that nobody reads."""

from __future__ import annotations

import asyncio
import random
import struct
import tracemalloc

import grpc
from binlog.rpc.call import QUEUE_MAX
from grpc import StatusCode, aio

from pump.rpc.admission import InFlight
from tests.integration.binlog.rpc_server import GRPC, MIB, WAIT_S, path, raw, refused, running, until
from tests.unit.http2.peer import GREETING, data, frame, headers, parse, settings


async def test_slow_reader_blocks_its_handler() -> None:
    """Nothing of 400 MiB is made that does not fit ahead of the reader."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + settings(INITIAL_WINDOW_SIZE=(1 << 31) - 1))
        writer.write(headers(1, path("Many")) + data(1, struct.pack(">BI", 0, 10) + b"4000 99999", end=True))
        await until(lambda: server.handlers.yielded > 2)
        seen, same = 0, 0
        while same < 20:
            await asyncio.sleep(0.02)
            same = same + 1 if server.handlers.yielded == seen else 0
            seen = server.handlers.yielded
        assert seen < 100, "the windows, the socket's buffers and what is sent ahead"
        writer.transport.abort()
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        assert reader is not None


async def test_server_stops_reading_from_peer_that_reads_no_answers() -> None:
    """Answers are small, so no window stops them: reading stops instead."""
    async with running() as server, raw(server.port) as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        message = struct.pack(">BI", 0, 8000) + bytes(8000)
        writer.write(GREETING + settings(INITIAL_WINDOW_SIZE=(1 << 31) - 1))
        writer.write(b"\0\0\4\x08\0\0\0\0\0" + struct.pack(">I", (1 << 30)))
        stream_id, drained = 1, True
        while drained and stream_id < 100_000:
            for _ in range(100):
                writer.write(headers(stream_id, GRPC) + data(stream_id, message, end=True))
                stream_id += 2
            try:
                await asyncio.wait_for(writer.drain(), 2.0)
            except TimeoutError:
                drained = False
        assert not drained, "everything was read"
        (session,) = server.server._sessions
        assert session.transport is not None
        assert session.transport.get_write_buffer_size() < 8 * MIB
        reader._transport.resume_reading()  # type: ignore[attr-defined]

        async def read_all() -> None:
            while await reader.read(MIB):
                pass

        reading = asyncio.create_task(read_all())
        await asyncio.wait_for(writer.drain(), WAIT_S)
        reading.cancel()


async def test_memory_budget_is_requested_before_message_bytes_arrive() -> None:
    async with running(budget=InFlight(10 * MIB)) as server, raw(server.port) as (reader, writer):
        first = server.unary("Wait")(bytes(9 * MIB))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        writer.write(GREETING + headers(1, GRPC) + data(1, struct.pack(">BI", 0, 5 * MIB)))
        await asyncio.wait_for(reader.readuntil(b"too many bytes in flight"), WAIT_S)
        assert server.budget.bytes == 9 * MIB
        server.handlers.go_on.set()
        assert await first == bytes(10)
        await until(lambda: server.budget.bytes == 0)
        assert len(await server.unary("Echo")(bytes(5 * MIB))) == 5 * MIB


async def test_a_message_above_the_limit_is_refused_before_its_bytes_come() -> None:
    async with running() as server:
        message = bytes(65 * MIB)
        code, text = await refused(server.unary("Echo")(message))
        assert code is StatusCode.RESOURCE_EXHAUSTED
        assert text == f"a message of {65 * MIB} bytes is above the limit of {64 * MIB}"
        code, _ = await refused(server.unary("Echo")(message, compression=grpc.Compression.Gzip))
        assert code is StatusCode.RESOURCE_EXHAUSTED
        await until(lambda: server.budget.bytes == 0)


async def test_stream_survives_refusal_of_message_above_memory_budget() -> None:
    """Its message is refused by its handler; beyond what is tolerated, it waits."""
    async with running(budget=InFlight(10 * MIB)) as server:
        first = server.unary("Wait")(bytes(9 * MIB))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        calls = [server.stream("Each") for _ in range(2)]
        await calls[0].write(bytes(2 * MIB))
        assert await asyncio.wait_for(calls[0].read(), WAIT_S) == b"refused"
        assert server.budget.bytes <= 11 * MIB
        async with raw(server.port) as (_, writer):  # something is tolerated for as long as it does not come
            writer.write(GREETING + headers(1, path("Each")) + data(1, struct.pack(">BI", 0, 2 * MIB)))
            await until(lambda: server.budget.bytes == 11 * MIB)
            writing = asyncio.ensure_future(calls[1].write(bytes(4 * MIB) + b"it has come at last!"))
            reading = asyncio.ensure_future(calls[1].read())
            await asyncio.wait([reading], timeout=0.5)
            assert not reading.done() and server.budget.bytes == 11 * MIB
            server.handlers.go_on.set()
            await first
            assert await asyncio.wait_for(reading, WAIT_S) == b"it has come at last!"
            await writing
        for call in calls:
            await call.done_writing()
            assert await call.read() is aio.EOF
        await until(lambda: server.budget.bytes == 0)


async def test_server_stops_reading_stream_whose_messages_are_not_consumed() -> None:
    async with running() as server:
        call = server.stream("None")
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await call.write(bytes(10_000))
                written += 10_000

        writing = asyncio.create_task(write())
        seen, same = 0, 0
        while same < 20:
            await asyncio.sleep(0.02)
            same = same + 1 if written == seen else 0
            seen = written
        assert seen < 4 * MIB
        writing.cancel()
        call.cancel()


async def test_queued_messages_take_no_more_memory_than_their_bytes() -> None:
    """Empty ones, as many as the windows take: each is five bytes, and would be some hundred as an object."""
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING)
        streams = range(1, 17, 2)
        await asyncio.wait_for(reader.read(1), WAIT_S)
        tracemalloc.start()
        try:
            for stream_id in streams:
                writer.write(headers(stream_id, path("Slow")))
            for _ in range(MIB // 16380):
                for stream_id in streams:
                    writer.write(data(stream_id, bytes(16380)))
                await writer.drain()
            writer.write(frame(6, b"all came"))
            found = b""
            while not found.endswith(b"\0\0\x08\6\1\0\0\0\0all came"):
                found += await asyncio.wait_for(reader.read(MIB), WAIT_S)
            assert tracemalloc.get_traced_memory()[0] < 30 * MIB
        finally:
            tracemalloc.stop()
        (session,) = server.server._sessions
        assert {len(call._queue) for call in session._calls.values()} == {QUEUE_MAX}  # type: ignore[attr-defined]


async def test_queued_messages_arrive_whole_and_in_order() -> None:
    """Small and large ones, cut anywhere, behind more of them than are kept as messages; the end is behind them."""
    chance = random.Random(5)
    sizes = [*[0] * 500, 1, 300_000, *[20] * 200, 130_000, *range(100), 70_000, 0]
    bodies = [chance.randbytes(size) for size in sizes]
    whole = b"".join(struct.pack(">BI", 0, len(body)) + body for body in bodies)
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, path("Slow")))
        at = 0
        while at < len(whole):
            size = chance.choice([1, 7, 400, 16384])
            writer.write(data(1, whole[at : at + size], end=at + size >= len(whole)))
            at += size
        writer.write(frame(6, b"all came"))
        await asyncio.wait_for(reader.readuntil(b"all came"), WAIT_S)
        server.handlers.go_on.set()
        found = list(parse(await asyncio.wait_for(reader.readuntil(b"grpc-status\x010"), WAIT_S)))
        answers = b"".join(each.payload for each in found if each.kind == 0)
        assert answers == b"".join(struct.pack(">BI", 0, len(body[-20:])) + body[-20:] for body in bodies)
        await until(lambda: server.budget.bytes == 0)


async def test_invalid_message_behind_queued_ones_ends_stream() -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        sent = b"\0\0\0\0\0" * 500 + b"\7\0\0\0\1a"
        writer.write(GREETING + headers(1, path("Slow")) + data(1, sent) + frame(6, b"all came"))
        await asyncio.wait_for(reader.readuntil(b"all came"), WAIT_S)
        server.handlers.go_on.set()
        await asyncio.wait_for(reader.readuntil(b"unknown flags 7"), WAIT_S)
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        await until(lambda: server.budget.bytes == 0)


async def test_stream_ended_within_queued_message_is_refused() -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        sent = b"\0\0\0\0\0" * 500 + b"\0\0\0\0\5ab"
        writer.write(GREETING + headers(1, path("Slow")) + data(1, sent, end=True) + frame(6, b"all came"))
        await asyncio.wait_for(reader.readuntil(b"all came"), WAIT_S)
        server.handlers.go_on.set()
        await asyncio.wait_for(reader.readuntil(b"ended within a message"), WAIT_S)
        await until(lambda: server.budget.bytes == 0)
