"""Requests that are no gRPC, or wrong."""

from __future__ import annotations

import asyncio

import pytest
from binlog.http2.limits import ConnectionLimits

from tests.integration.binlog.rpc_server import GRPC, WAIT_S, path, raw, running, until
from tests.unit.http2.peer import GREETING, data, frame, headers, parse, rst


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((("content-type", "text/plain"),), b"415"),
        ((("content-type", "application/grpcfoo"),), b"415"),
        ((), b"415"),
    ],
)
async def test_request_without_grpc_content_type_or_post_is_refused_in_http(
    fields: tuple[tuple[str, str], ...], status: bytes
) -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, (*GRPC[:3], *fields), end=True))
        await asyncio.wait_for(reader.readuntil(b"this address serves gRPC"), WAIT_S)
        writer.write(headers(3, ((":method", "GET"), *GRPC[1:]), end=True))
        assert b"405" in await asyncio.wait_for(reader.readuntil(b"is asked with POST"), WAIT_S)


async def test_plain_http_request_is_answered_after_its_end() -> None:
    """Until then it has its place among the streams, which a reset gives back."""
    async with running(limits=ConnectionLimits(streams_max=2)) as server, raw(server.port) as (reader, writer):
        get = ((":method", "GET"), *GRPC[1:])
        writer.write(GREETING + headers(1, get) + data(1, b"x") + headers(3, get) + frame(6, bytes(8)))
        found = list(parse(await asyncio.wait_for(reader.readuntil(b"\6\1\0\0\0\0" + bytes(8)), WAIT_S)))
        assert {each.kind for each in found} <= {4, 6, 8}, "nothing but settings, windows and the ping"
        writer.write(rst(3) + data(1, b"y", end=True))
        assert b"405" in await asyncio.wait_for(reader.readuntil(b"is asked with POST"), WAIT_S)
        for stream_id in (5, 7):
            writer.write(headers(stream_id, get, end=True))
            assert b"405" in await asyncio.wait_for(reader.readuntil(b"is asked with POST"), WAIT_S)


MISTAKES = {
    "no message": (b"", b"without a whole message"),
    "half a message": (b"\0\0\0\0\5abc", b"without a whole message"),
    "two messages": (b"\0\0\0\0\1a\0\0\0\0\1b", b"takes one message"),
    "unknown flags": (b"\7\0\0\0\1a", b"unknown flags 7"),
    "compressed without saying how": (b"\1\0\0\0\1a", b"names no grpc-encoding"),
}


@pytest.mark.parametrize("name", MISTAKES)
async def test_malformed_grpc_request_is_refused_with_reason(name: str) -> None:
    sent, text = MISTAKES[name]
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, GRPC) + data(1, sent, end=True))
        await asyncio.wait_for(reader.readuntil(text), WAIT_S)
        await until(lambda: server.budget.bytes == 0)


async def test_unknown_grpc_encoding_is_refused_with_supported_ones() -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, (*GRPC, ("grpc-encoding", "snappy")), end=True))
        found = await asyncio.wait_for(reader.readuntil(b"compressed by snappy"), WAIT_S)
        assert b"identity,gzip" in found and b"grpc-status\x0212" in found


async def test_connection_error_is_named_in_goaway() -> None:
    async with running() as server, raw(server.port) as (reader, writer):
        writer.write(GREETING + headers(1, path("Each")) + data(1, b"\0\0\0\0\5hello"))
        await asyncio.wait_for(reader.readuntil(b"hello"), WAIT_S)
        writer.write(frame(0, b"x", stream_id=99))
        last = list(parse(await asyncio.wait_for(reader.read(), WAIT_S)))[-1]
        assert (last.kind, last.payload[8:]) == (7, b"data of stream 99, which is idle")
        await asyncio.wait_for(server.handlers.ended.wait(), WAIT_S)
