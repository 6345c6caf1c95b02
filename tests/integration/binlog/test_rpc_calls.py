"""Calls of every kind by gRPC's own client, and how they end before their time."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import grpc
import pytest
from grpc import StatusCode, aio

from tests.integration.binlog.rpc_server import MIB, WAIT_S, path, raw, refused, running, until
from tests.unit.http2.peer import GREETING, data, headers


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
async def test_unary_and_streaming_calls_return_messages_of_any_size(compression: Any) -> None:
    async with running() as server:
        for size in (0, 1, 5000, 70_000, 9 * MIB):
            message = os.urandom(size)
            assert await server.unary("Echo")(message, compression=compression, timeout=WAIT_S) == message
        call: Any = server.channel.unary_stream("/t/Many")(b"20 200000", compression=compression)
        assert [len(message) async for message in call] == [200_000] * 20
        call = server.channel.stream_stream("/t/Each")(compression=compression)
        for number in range(50):
            await call.write(b"%020d" % number)
            assert await call.read() == b"%020d" % number
        await call.write(bytes(9 * MIB) + b"the end of a message")
        assert await call.read() == b"the end of a message"
        await call.done_writing()
        assert await call.read() is aio.EOF and await call.code() is StatusCode.OK
        await until(lambda: server.budget.bytes == 0)


async def test_upload_and_download_on_one_connection_do_not_block_each_other() -> None:
    """Each direction is many times its windows, and neither waits for the other; small calls pass between."""
    async with running() as server:
        call = server.stream("Each")
        begun, ended = asyncio.Event(), asyncio.Event()

        async def upload() -> None:
            for number in range(24):
                await call.write(bytes(4 * MIB) + b"%020d" % number)
                assert await call.read() == b"%020d" % number
                begun.set()

        async def download() -> None:
            stream: Any = server.channel.unary_stream("/t/Many")(b"96 1048576")
            assert [len(message) async for message in stream] == [MIB] * 96

        async def small() -> None:
            await begun.wait()
            while not ended.is_set():
                assert await server.unary("Echo")(b"x", timeout=WAIT_S) == b"x"

        others = asyncio.create_task(small())
        await asyncio.wait_for(asyncio.gather(upload(), download()), WAIT_S)
        ended.set()
        await others
        call.cancel()
        await until(lambda: server.budget.bytes == 0)


async def test_many_concurrent_calls_on_one_connection_get_their_answers() -> None:
    async with running() as server:
        messages = [os.urandom(1 + 37 * number) for number in range(500)]
        assert await asyncio.gather(*(server.unary("Echo")(message) for message in messages)) == messages


async def test_handler_errors_become_grpc_statuses() -> None:
    async with running() as server:
        assert await refused(server.unary("Fail")(b"named")) == (StatusCode.ABORTED, "5 % of it: schön")
        code, text = await refused(server.unary("Fail")(b""))
        assert (code, "ValueError" in text, "a mistake" in text) == (StatusCode.UNKNOWN, True, False)
        assert await refused(server.unary("Nothing")(b"")) == (
            StatusCode.UNIMPLEMENTED,
            "there is no method /t/Nothing here",
        )
        call: Any = server.channel.unary_stream("/t/Many")(b"3 10 ")
        found = []
        with pytest.raises(aio.AioRpcError, match="after all"):
            async for message in call:
                found.append(message)
        assert len(found) == 3


async def test_expired_deadline_ends_call_and_handler() -> None:
    """The client's own clock does not count here: it sends a deadline, and waits."""
    async with running() as server, raw(server.port) as (reader, writer):
        request = headers(1, (*path("Wait"), ("grpc-timeout", "100m"))) + data(1, b"\0\0\0\0\0", end=True)
        writer.write(GREETING + request)
        await asyncio.wait_for(reader.readuntil(b"grpc-status\x014"), WAIT_S)
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        assert server.budget.bytes == 0


async def test_a_cancelled_call_ends_its_handler() -> None:
    async with running() as server:
        call = server.unary("Wait")(bytes(1000))
        await asyncio.wait_for(server.handlers.begun.wait(), WAIT_S)
        assert server.budget.bytes == 1000
        call.cancel()
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        await until(lambda: server.budget.bytes == 0)


@pytest.mark.parametrize("name", ["Wait", "Each"])
async def test_a_lost_connection_ends_its_handlers(name: str) -> None:
    async with running() as server:
        async with raw(server.port) as (_, writer):
            writer.write(GREETING + headers(1, path(name)) + data(1, b"\0\0\0\0\3abc" + b"\0\0\1\0\0more", end=False))
            if name == "Wait":
                await until(lambda: server.budget.bytes == 3 + 65536)
                server.handlers.ended.set()  # it never began
            writer.transport.abort()
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
        await until(lambda: server.budget.bytes == 0)
