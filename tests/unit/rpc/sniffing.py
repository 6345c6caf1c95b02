"""A connection of a server without a socket: what is fed to it, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

from binlog.http2.limits import ConnectionLimits
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Received
from binlog.rpc.session import RpcSession, Settings

LIMITS = ConnectionLimits(streams_max=20, stream_window_bytes=1 << 16, connection_window_bytes=1 << 17)


class Transport:
    """Takes everything at once."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = False
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments: None


class Http1(asyncio.Protocol):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


async def _echo(request: Buffer) -> bytes:
    return bytes(request)


async def _each(requests: Any) -> Any:
    received: Received
    async for received in requests:
        yield bytes(received.data)
        received.release()


METHODS = {
    b"/t/Echo": Method(unary=_echo, request_bytes_max=1 << 20),
    b"/t/Many": Method(streaming=lambda request: _each(_one(request)), request_bytes_max=1 << 20),
    b"/t/Each": Method(bidi=_each, request_bytes_max=1 << 20),
}


async def _one(request: Buffer) -> Any:
    yield Received(request)


async def play(pieces: list[bytes]) -> tuple[bytes | None, bytes, RpcSession]:
    """(what was handed over to HTTP/1, or None; what was answered by HTTP/2; the connection, which is lost by now)."""
    http1, transport = Http1(), Transport()
    settings = Settings(METHODS, limits=LIMITS, http1=lambda: http1)
    session = RpcSession(settings, lambda _session: True, lambda _session: None)
    session.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        if transport.closing:
            break
        (transport.protocol or session).data_received(piece)
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    session.tick(session._now_s)
    handed_over = http1.received if transport.protocol is not None else None
    if transport.protocol is None:
        session.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
    return handed_over, bytes(transport.written), session
