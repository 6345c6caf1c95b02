"""The gRPC server. Handlers know no transport: bytes in, bytes or a named error out; here errors become status codes.

Serializers of grpc are not used: a handler parses what it needs of a message, which is less than all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from binlog import errors
from binlog.errors import BinlogError, ConfigError
from binlog.fields import why_not_listening
from binlog.log import get_logger
from binlog.security import Security
from grpc import aio

from pump import errors as own
from pump import metering

_log = get_logger("pump.edge")

Unary = Callable[[bytes], Awaitable[bytes]]
Streaming = Callable[[bytes], AsyncIterator[bytes]]
Bidi = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]

# The first class that fits decides.
CODES: tuple[tuple[type[BinlogError], grpc.StatusCode], ...] = (
    (errors.ClusterMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.NotOnline, grpc.StatusCode.FAILED_PRECONDITION),
    (own.NotResolved, grpc.StatusCode.FAILED_PRECONDITION),
    (own.NotLeader, grpc.StatusCode.FAILED_PRECONDITION),
    (own.NoSuchPrewrite, grpc.StatusCode.NOT_FOUND),
    (own.NoSuchBinlog, grpc.StatusCode.NOT_FOUND),
    (own.NotDamaged, grpc.StatusCode.FAILED_PRECONDITION),
    (own.TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (own.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.NoSpace, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.LogBroken, grpc.StatusCode.INTERNAL),
    (errors.PurgedPosition, grpc.StatusCode.OUT_OF_RANGE),
    (own.DamagedRecord, grpc.StatusCode.DATA_LOSS),
    (errors.DecodeError, grpc.StatusCode.INVALID_ARGUMENT),
    (own.InvalidBinlog, grpc.StatusCode.INVALID_ARGUMENT),
    (own.RolledBack, grpc.StatusCode.ABORTED),
    (own.Conflict, grpc.StatusCode.ALREADY_EXISTS),
    (own.Stopping, grpc.StatusCode.UNAVAILABLE),
    (errors.TimestampUnavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.EtcdError, grpc.StatusCode.UNAVAILABLE),
)
# What upstream's service answers with a code of its own; its clients know nothing but UNKNOWN and the text (P-RPC-04).
UPSTREAM_CODES = frozenset({grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNAVAILABLE})


# TiDB's client repeats nothing that was answered with ResourceExhausted (C-10), which is right for these. A full disk
# and too many bytes in flight are UNKNOWN to it: another pump may have room, and this one in a moment.
UPSTREAM_FINAL: tuple[type[BinlogError], ...] = (own.TooLarge,)


def code_of(error: BinlogError) -> grpc.StatusCode:
    """The status of an error; UNKNOWN for one that is not in the table."""
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.UNKNOWN


def code_number(error: BinlogError) -> int:
    """The status as a number, for errors that travel inside a message."""
    number: int = code_of(error).value[0]
    return number


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service: methods by kind. `upstream`: errors are UNKNOWN with a text, as upstream's clients expect.

    Calls and pulls are timed here under their names; a bidi handler takes the time of each message itself."""

    name: str
    unary: dict[str, Unary]
    streaming: dict[str, Streaming]
    bidi: dict[str, Bidi]
    upstream: bool = False


class Edge:
    """Listens from `start` to `stop`. `port` is the one it got."""

    def __init__(
        self, services: Sequence[Service], security: Security | None = None, *, receive_bytes_max: int = 0
    ) -> None:
        self._security = security
        self.port = 0
        self._server = aio.server(
            handlers=[_generic(service) for service in services],
            interceptors=security.grpc_server_interceptors() if security is not None else (),
            options=[
                ("grpc.max_receive_message_length", receive_bytes_max or -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ],
        )

    async def start(self, addr: str, socket: str = "") -> None:
        """Listen. ConfigError names the address and says why it cannot be used."""
        credentials = self._security.grpc_server_credentials() if self._security is not None else None
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(addr)
            else:
                self.port = self._server.add_secure_port(addr, credentials)
            if socket:
                self._server.add_insecure_port(_unix(socket))
        except RuntimeError as error:
            places = f"addr {addr}{' and socket ' + socket if socket else ''}"
            raise ConfigError(f"{places}: cannot listen there: {why_not_listening(addr)}") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """No new calls; those under way may end within the grace period (P-LC-07)."""
        await self._server.stop(grace_s)


def _unix(socket: str) -> str:
    """A path or unix URL as grpc wants it."""
    return "unix:" + socket.removeprefix("unix://").removeprefix("unix:")


def _generic(service: Service) -> grpc.GenericRpcHandler:
    methods: dict[str, Any] = {}
    for name, unary in service.unary.items():
        methods[name] = grpc.unary_unary_rpc_method_handler(_answer_unary(name, unary, service.upstream))
    for name, streaming in service.streaming.items():
        pull = _timed(name, streaming)
        methods[name] = grpc.unary_stream_rpc_method_handler(_answer_stream(pull, service.upstream))
    for name, bidi in service.bidi.items():
        methods[name] = grpc.stream_stream_rpc_method_handler(_answer_stream(bidi, service.upstream))
    return grpc.method_handlers_generic_handler(service.name, methods)


def _timed(name: str, handler: Streaming) -> Streaming:
    async def timed(request: bytes) -> AsyncIterator[bytes]:
        with metering.timed(name):
            async for message in handler(request):
                yield message

    return timed


def _answer_unary(name: str, handler: Unary, upstream: bool) -> Any:
    async def answer(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            with metering.timed(name):
                return await handler(request)
        except BinlogError as error:
            await _abort(context, error, upstream)

    return answer


def _answer_stream(handler: Callable[[Any], AsyncIterator[bytes]], upstream: bool) -> Any:
    async def answer(request: Any, context: aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        try:
            async for message in handler(request):
                yield message
        except BinlogError as error:
            await _abort(context, error, upstream)

    return answer


async def _abort(context: aio.ServicerContext[bytes, bytes], error: BinlogError, upstream: bool) -> NoReturn:
    code = code_of(error)
    if upstream and code not in UPSTREAM_CODES and not isinstance(error, UPSTREAM_FINAL):
        code = grpc.StatusCode.UNKNOWN
    await context.abort(code, str(error))
