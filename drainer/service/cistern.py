"""The drainer's gRPC service Cistern. A Go pump refuses to start unless every drainer answers Notify (P-LC-05).

Notify only answers: a survey lists the pumps every time (correctness rule 8), so no notification is needed.
"""

from __future__ import annotations

import grpc
import grpc.aio
from binlog.errors import ConfigError
from binlog.pb import cistern_pb2, cistern_pb2_grpc
from binlog.runtime.fields import why_not_listening
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security

STOP_S = 1.0

_log = get_logger(__name__)


class _Cistern(cistern_pb2_grpc.CisternServicer):
    async def Notify(
        self, request: cistern_pb2.NotifyReq, context: grpc.aio.ServicerContext[object, object]
    ) -> cistern_pb2.NotifyResp:
        _log.info("Notify received from a pump", peer=context.peer())
        return cistern_pb2.NotifyResp()


class CisternServer:
    """Serves between `start` and `close`."""

    def __init__(self, addr: str, security: Security) -> None:
        self._addr = addr
        self._server = grpc.aio.server(interceptors=security.grpc_server_interceptors())
        cistern_pb2_grpc.add_CisternServicer_to_server(_Cistern(), self._server)  # type: ignore[no-untyped-call]
        self._credentials = security.grpc_server_credentials()

    async def start(self) -> None:
        """Start listening. ConfigError names an address that cannot be used."""
        try:
            if self._credentials is None:
                bound = self._server.add_insecure_port(self._addr)
            else:
                bound = self._server.add_secure_port(self._addr, self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"addr {self._addr}: cannot listen there: {why_not_listening(self._addr)}") from error
        if not bound:
            raise ConfigError(f"addr {self._addr}: cannot listen there")
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(STOP_S)
