"""A gRPC server: its listening sockets and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import AI_PASSIVE, SOCK_STREAM

from binlog.rpc.session import RpcSession, Settings
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.open_files import connections_max as own_connections_max

TICK_S = 0.25
BACKLOG = 1024
CONNECTIONS_MAX = 4096
ANYWHERE = ("", "::")
PORTS_TRIED = 10  # how many system-chosen ports to try until one is free at every address
NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # errors on a machine without IPv6
TLS_HANDSHAKE_S = 20.0
CLOSE_S = 1.0  # time for the last bytes of each connection

_log = get_logger("rpc")


class Server:
    """Listens from `listen` until `stop`."""

    def __init__(self, settings: Settings, *, connections_max: int = 0) -> None:
        """`connections_max` 0: CONNECTIONS_MAX, or if less half of the files that this process may open."""
        self._settings = settings
        self._connections_max = connections_max or own_connections_max(CONNECTIONS_MAX, files_share=2)
        self._sessions: set[RpcSession] = set()
        self._handed_over: set[asyncio.Transport] = set()  # used by another protocol; each is an open file, too
        self._servers: list[asyncio.Server] = []
        self._unix_path = ""
        self._stopping = False
        self._ticker: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._full = Outage(_log, "too many connections: new ones are closed", "new connections are accepted again")

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen at all addresses of a host, and return the port. Raises OSError if that is not possible."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(None if host in ANYWHERE else host, port, type=SOCK_STREAM, flags=AI_PASSIVE)
        addresses = sorted({str(each[4][0]) for each in found})  # 0.0.0.0 is in front of ::
        for attempt in range(1, PORTS_TRIED + 1):
            try:
                servers = await self._listen_at(addresses, port, tls)
                break
            except OSError as error:
                taken = not port and len(addresses) > 1 and error.errno == errno.EADDRINUSE
                if not taken or attempt == PORTS_TRIED:
                    raise
        self._servers += servers
        self._begin()
        return int(servers[0].sockets[0].getsockname()[1])

    async def _listen_at(self, addresses: Sequence[str], port: int, tls: ssl.SSLContext | None) -> list[asyncio.Server]:
        """Listen at each address. If the system chooses the port for the first one, the others use the same port."""
        loop = asyncio.get_running_loop()
        timeout_s = TLS_HANDSHAKE_S if tls is not None else None
        servers: list[asyncio.Server] = []
        try:
            for address in addresses:
                try:
                    server = await loop.create_server(
                        self._session, address, port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=timeout_s
                    )
                except OSError as error:
                    if servers and error.errno in NO_SUCH_FAMILY:
                        continue
                    raise
                servers.append(server)
                port = port or server.sockets[0].getsockname()[1]
        except BaseException:
            for server in servers:
                server.close()
            raise
        return servers

    async def listen_unix(self, path: str) -> None:
        """Listen at a Unix socket, without TLS. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._session, path, backlog=BACKLOG))
        self._unix_path = path
        self._begin()

    def _begin(self) -> None:
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick(), name="rpc clock")

    def _session(self) -> RpcSession:
        return RpcSession(self._settings, self._opened, self._session_changed)

    def _opened(self, session: RpcSession) -> bool:
        if self._stopping:
            return False
        count = len(self._sessions) + len(self._handed_over)
        if count >= self._connections_max:
            self._full.failed(connections=count)
            return False
        self._full.over()
        self._sessions.add(session)
        return True

    def _session_changed(self, session: RpcSession) -> None:
        if session.transport is None:
            self._sessions.discard(session)
            if session.handed_over is not None and not session.handed_over.is_closing():
                self._handed_over.add(session.handed_over)
        self._changed.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._handed_over = {transport for transport in self._handed_over if not transport.is_closing()}
            for session in list(self._sessions):
                try:
                    session.tick(now_s)
                except Exception:  # noqa: BLE001  the clock of the other connections must continue
                    _log.exception("checking the timeouts of a connection failed", peer=session.peer)

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls. Open calls may end within the grace period; then they are ended."""
        self._stopping = True  # also for accepted connections whose handshake is not finished
        for server in self._servers:
            server.close()
        if self._unix_path:
            Path(self._unix_path).unlink(missing_ok=True)  # noqa: ASYNC240  no disk is touched
        for session in list(self._sessions):
            session.drain()
        await self._until(lambda: all(session.is_idle for session in self._sessions), grace_s)
        for session in list(self._sessions):
            session.stop("the server is stopping")
        await self._until(lambda: not self._sessions, CLOSE_S)
        for session in list(self._sessions):
            if session.transport is not None:
                session.transport.abort()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
