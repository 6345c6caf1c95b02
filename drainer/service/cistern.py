"""The drainer's address: the gRPC service Cistern, and over HTTP/1 the same pages as at status-addr.

A Go pump refuses to start unless every drainer answers Notify (P-LC-05), and the original's binlogctl requests a
drainer over HTTP/1 at this address to pause or to close. Notify only answers: a survey lists the pumps every time
(correctness rule 8: which pumps count), so no notification is needed.
"""

from __future__ import annotations

from binlog.pb import cistern_pb2
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method
from binlog.rpc.session import Settings
from binlog.rpc.waiting import Waiting
from binlog.runtime.edge import Edge
from binlog.runtime.http import StatusServer
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security

STOP_S = 1.0

_log = get_logger(__name__)


class CisternServer:
    """Serves between `start` and `close`. `port`: the port on which it listens."""

    def __init__(self, addr: str, security: Security, pages: StatusServer) -> None:
        """`pages` may already be serving, or only be prepared; it is closed after this server."""
        self._addr = addr
        self._pages = pages
        methods = {b"/binlog.Cistern/Notify": Method(unary=_notify)}
        self._edge = Edge(Settings(methods, Waiting()), security)
        self._edge.serve_http1(pages.protocol)

    async def start(self) -> None:
        """Start listening. ConfigError names an address that cannot be used."""
        await self._edge.start(self._addr)

    @property
    def port(self) -> int:
        return self._edge.port

    async def close(self) -> None:
        await self._edge.stop(STOP_S)


async def _notify(_request: Buffer) -> bytes:
    _log.info("Notify received from a pump")
    return cistern_pb2.NotifyResp().SerializeToString()
