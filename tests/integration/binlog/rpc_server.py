"""A gRPC server with methods of every kind, and its clients: gRPC's own, and bare connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from binlog.errors import BinlogError
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Received, Responder
from binlog.rpc.server import Server
from binlog.rpc.session import RpcSession, Settings
from binlog.rpc.status import RpcError, Status
from grpc import StatusCode, aio

from pump.rpc.admission import InFlight
from tests.unit.http2.peer import REQUEST

MIB = 1 << 20

WAIT_S = 60.0

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


Answer = Callable[[bytes | BaseException], bool]


def _answer(responder: Responder, number: int, found: bytes | BaseException) -> bool:
    return responder.answer((number,), found) == 1 if isinstance(found, bytes) else responder.refuse(number, found)


class Handlers:
    """Methods of every kind, and what became of them."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.go_on = asyncio.Event()
        self.yielded = 0
        self.taken: list[tuple[bytes, Answer]] = []

    async def echo(self, request: Buffer) -> bytes:
        return bytes(request)

    async def fail(self, request: Buffer) -> bytes:
        if request == b"named":
            raise BinlogError("5 % of it: schön")
        raise ValueError("a mistake")

    async def wait(self, request: Buffer) -> bytes:
        self.begun.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended.set()
        return bytes(request[:10])

    def later(self, responder: Responder, numbers: Sequence[int], requests: Sequence[Buffer]) -> None:
        """A batched handler: what it has got is answered by the test."""
        for number, request in zip(numbers, requests, strict=True):
            if request == b"refused":
                raise BinlogError("refused at once")
            self.taken.append((bytes(request), partial(_answer, responder, number)))
        self.begun.set()

    async def many(self, request: Buffer) -> AsyncIterator[bytes]:
        count, size = map(int, bytes(request).split())
        try:
            for _ in range(count):
                yield b"x" * size
                self.yielded += 1
            if bytes(request).endswith(b" "):
                raise BinlogError("after all")
        finally:
            self.ended.set()

    async def each(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        try:
            async for received in requests:
                yield b"refused" if received.refused is not None else bytes(received.data[-20:])
                received.release()
        finally:
            self.ended.set()

    async def none(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        """Takes nothing."""
        await self.go_on.wait()
        yield b""

    async def slow(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        """As `each`, when it may go on."""
        await self.go_on.wait()
        async for answer in self.each(requests):
            yield answer

    def methods(self) -> dict[bytes, Method]:
        def translate(error: Exception) -> RpcError | None:
            return RpcError(Status.ABORTED, str(error)) if isinstance(error, BinlogError) else None

        def method(**handler: Any) -> Method:
            return Method(translate=translate, counted=True, request_bytes_max=64 * MIB, **handler)

        return {
            b"/t/Echo": method(unary=self.echo),
            b"/t/Fail": method(unary=self.fail),
            b"/t/Wait": method(unary=self.wait),
            b"/t/Later": method(batched=self.later),
            b"/t/Many": method(streaming=self.many),
            b"/t/Each": method(bidi=self.each),
            b"/t/None": method(bidi=self.none),
            b"/t/Slow": method(bidi=self.slow),
        }


class Running:
    """A server, and channels to it."""

    def __init__(self, **more: Any) -> None:
        self.handlers = Handlers()
        self.budget = more.pop("budget", None) or InFlight()
        connections_max = more.pop("connections_max", 100)
        self.settings = Settings(self.handlers.methods(), self.budget, **more)
        self.server = Server(self.settings, connections_max=connections_max)
        self.port = 0
        self.channel: aio.Channel

    def unary(self, name: str, **options: Any) -> Any:
        return self.channel.unary_unary(f"/t/{name}", **options)

    def stream(self, name: str) -> Any:
        return self.channel.stream_stream(f"/t/{name}")()


@contextlib.asynccontextmanager
async def running(*, tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[Running]:
    found = Running(**more)
    found.port = await found.server.listen("127.0.0.1", 0, tls)
    async with aio.insecure_channel(f"127.0.0.1:{found.port}", options=UNLIMITED) as found.channel:
        try:
            yield found
        finally:
            await found.channel.close()
            await found.server.stop(0)


async def refused(call: Any) -> tuple[StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as found:
        await asyncio.wait_for(call, WAIT_S)
    return found.value.code(), found.value.details() or ""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def raw(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


def session_of(server: Running, writer: asyncio.StreamWriter) -> RpcSession:
    """The server's side of a bare connection. Tests call its `tick` with a time to come where a limit is to pass, so
    that a pause of the machine passes none."""
    here = writer.get_extra_info("sockname")
    (found,) = (
        each
        for each in server.server._sessions
        if each.transport is not None and each.transport.get_extra_info("peername") == here
    )
    return found


GRPC = (*REQUEST[:2], (":path", "/t/Echo"), ("content-type", "application/grpc"), ("te", "trailers"))


def path(name: str) -> tuple[tuple[str, str], ...]:
    return (*GRPC[:2], (":path", f"/t/{name}"), *GRPC[3:])
