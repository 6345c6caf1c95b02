"""A gRPC channel to an address as configurations write it: a URL (`K-05`) or a bare host:port."""

from __future__ import annotations

from collections.abc import Sequence

from grpc import aio

from binlog.errors import ConfigError
from binlog.security import Security

_TLS = {"http": False, "https": True, "unix": False, "unixs": True}


def open_channel(
    address: str, security: Security | None = None, options: Sequence[tuple[str, int | str]] = ()
) -> aio.Channel:
    """`http` and `unix` are plain, `https` and `unixs` are TLS, a bare host:port is TLS where TLS is on.

    ConfigError for another scheme, and for https without `ssl-ca`.
    """
    scheme, found, rest = address.partition("://")
    credentials = security.grpc_channel_credentials() if security is not None else None
    if found and scheme not in _TLS:
        raise ConfigError(f"URL scheme must be http, https, unix, or unixs: {address}")
    if found and _TLS[scheme] and credentials is None:
        raise ConfigError(f"{address} is TLS, but security.ssl-ca is not set")
    target = f"unix:{rest}" if scheme.startswith("unix") and found else (rest if found else address)
    target = target.rstrip("/")
    if credentials is None or (found and not _TLS[scheme]):
        return aio.insecure_channel(target, options=list(options))
    return aio.secure_channel(target, credentials, options=list(options))
