"""One address of a program: gRPC, and HTTP/1 beside it, plain or over TLS, as at the original's pump and drainer.

The first bytes of a connection tell which of the two it speaks. Over TLS a client may also say so by ALPN; a program
that says nothing is served by its first bytes, too.
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


class Edge:
    """Listens from `start` to `stop`. `port` is the one it got."""

    def __init__(self, settings: Settings, security: Security | None = None) -> None:
        self._security = security or Security()
        self._settings = settings
        settings.refuse = self._refuse
        self._server = Server(settings)
        self.port = 0

    async def start(self, addr: str, socket: str = "") -> None:
        """Listen. ConfigError names the address and says why it cannot be used."""
        tls = self._security.ssl_context(server=True, protocols=PROTOCOLS)
        try:
            host, port = split_host_port(addr)
        except ValueError as error:
            raise ConfigError(f"addr: {error}") from error
        try:
            self.port = await self._server.listen(host, port, tls)
        except OSError as error:
            await self._server.stop(0)
            raise ConfigError(f"addr {addr}: cannot listen there: {why_not_listening(addr)}") from error
        if socket:
            try:
                await self._server.listen_unix(socket.removeprefix("unix://").removeprefix("unix:"))
            except OSError as error:
                await self._server.stop(0)
                raise ConfigError(f"socket {socket}: cannot listen there: {error.strerror or error}") from error

    def serve_http1(self, protocol: Callable[[], asyncio.Protocol] | None) -> None:
        """From now on connections that do not speak HTTP/2 are given to such protocols, or (None) closed."""
        self._settings.http1 = protocol

    async def stop(self, grace_s: float) -> None:
        """No new calls; those under way may end within the grace period (P-LC-07)."""
        await self._server.stop(grace_s)

    def _refuse(self, transport: asyncio.Transport) -> str | None:
        """Why a peer may call nothing (S-03)."""
        if not (self._security.enabled and self._security.cert_allowed_cn):
            return None
        return self._security.check_names(common_names(transport.get_extra_info("ssl_object")))
