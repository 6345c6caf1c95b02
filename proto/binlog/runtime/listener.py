"""Serves gRPC and HTTP/1 at one address, plain or over TLS, as the original's pump and drainer do.

The first bytes of a connection show which of the two it uses. Over TLS a client may also select it by ALPN; a client
without ALPN is served by its first bytes, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from binlog.errors import ConfigError
from binlog.rpc.server import Server
from binlog.rpc.session import Settings
from binlog.runtime.fields import split_host_port, why_not_listening
from binlog.runtime.security import Security, common_names

PROTOCOLS = ("h2", "http/1.1")


class Listener(Server):
    """A server that listens from `start` until `stop`; calls under way may then end within the grace period (P-LC-07).
    `port`: the port it listens at."""

    def __init__(self, settings: Settings, security: Security | None = None) -> None:
        super().__init__(settings)
        self._security = security or Security()
        settings.refuse = self._refuse
        self.port = 0

    async def start(self, addr: str, socket: str = "") -> None:
        """Listen. Raises ConfigError with the address and the reason if it cannot be used."""
        tls = self._security.ssl_context(server=True, protocols=PROTOCOLS)
        try:
            host, port = split_host_port(addr)
        except ValueError as error:
            raise ConfigError(f"addr: {error}") from error
        try:
            self.port = await self.listen(host, port, tls)
        except OSError as error:
            await self.stop(0)
            raise ConfigError(f"addr {addr}: cannot listen there: {why_not_listening(error)}") from error
        if socket:
            try:
                await self.listen_unix(socket.removeprefix("unix://").removeprefix("unix:"))
            except OSError as error:
                await self.stop(0)
                raise ConfigError(f"socket {socket}: cannot listen there: {error.strerror or error}") from error

    def serve_http1(self, protocol: Callable[[], asyncio.Protocol] | None) -> None:
        """Pass connections that do not use HTTP/2 to such protocols from now on, or close them (None)."""
        self._settings.http1 = protocol

    def _refuse(self, transport: asyncio.Transport) -> str | None:
        """Return why this peer may make no calls, or None (S-03)."""
        if not (self._security.enabled and self._security.cert_allowed_cn):
            return None
        return self._security.check_names(common_names(transport.get_extra_info("ssl_object")))
