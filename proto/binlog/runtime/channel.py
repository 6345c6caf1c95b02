"""gRPC channels to addresses in the form of configurations: a URL (`K-05`) or a bare host:port; calls over them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from binlog.errors import ConfigError
from binlog.runtime.security import Security

KEEPALIVE_S = 10.0
KEEPALIVE_TIMEOUT_S = 10.0

_TLS = {"http": False, "https": True, "unix": False, "unixs": True}


def keepalive(time_s: float = KEEPALIVE_S, timeout_s: float = KEEPALIVE_TIMEOUT_S) -> tuple[tuple[str, int], ...]:
    """Return options for a channel that detects an unreachable server.

    While a call is under way, a ping is sent after `time_s` seconds without a packet. The connection fails if no answer
    arrives within `timeout_s`.

    A Go server counts pings that are less than five minutes apart. It closes the connection (ENHANCE_YOUR_CALM,
    "too_many_pings") at the fourth ping between two of its own messages. So for a stream on which the server may be
    silent for long, `time_s` must allow no more than three pings between two messages. Our server accepts one ping per
    second.
    """
    return (
        ("grpc.keepalive_time_ms", max(1, int(time_s * 1000))),
        ("grpc.keepalive_timeout_ms", int(timeout_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(timeout_s * 1000)),  # by default, gRPC waits a minute for a lost ping
        ("grpc.http2.max_pings_without_data", 0),  # a pull sends nothing after its request
    )


def open_channel(
    address: str, security: Security | None = None, options: Sequence[tuple[str, int | str]] = ()
) -> aio.Channel:
    """Open a channel. `http` and `unix` are plain, `https` and `unixs` use TLS, a bare host:port uses TLS if it is
    enabled.

    Raises ConfigError for another scheme, and for https or unixs without `ssl-ca`.
    """
    channel: aio.Channel = _open(aio, address, security, options)
    return channel


def open_blocking_channel(
    address: str, security: Security | None = None, options: Sequence[tuple[str, int | str]] = ()
) -> grpc.Channel:
    """Open a channel for use in a thread. See `open_channel`."""
    channel: grpc.Channel = _open(grpc, address, security, options)
    return channel


def stub_of(channel: Any, file: FileDescriptor, service: str) -> Any:
    """Return the calls of a service, named as its methods. `file`: the descriptor of the module that has the service.
    The calls block if the channel is one for a thread."""
    found = file.services_by_name[service]
    return SimpleNamespace(**{method.name: _call(channel, found.full_name, method) for method in found.methods})


def _call(channel: Any, service: str, method: MethodDescriptor) -> Any:
    sides = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
    return getattr(channel, "_".join(sides))(
        f"/{service}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
        _registered_method=True,  # as in the stubs that protoc generates: gRPC looks the method up once
    )


def _open(library: Any, address: str, security: Security | None, options: Sequence[tuple[str, int | str]]) -> Any:
    scheme, found, rest = address.partition("://")
    credentials = security.grpc_channel_credentials() if security is not None else None
    if found and scheme not in _TLS:
        raise ConfigError(f"URL scheme must be http, https, unix, or unixs: {address}")
    if found and _TLS[scheme] and credentials is None:
        raise ConfigError(f"{address} is TLS, but security.ssl-ca is not set")
    target = f"unix:{rest}" if scheme.startswith("unix") and found else (rest if found else address)
    if credentials is None or (found and not _TLS[scheme]):
        return library.insecure_channel(target.rstrip("/"), options=list(options))
    return library.secure_channel(target.rstrip("/"), credentials, options=list(options))
