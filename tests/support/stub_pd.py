"""A PD with a settable clock: GetMembers and Tso on a real gRPC server in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from binlog.cluster.tso import compose, logical, physical_ms
from binlog.pb import pdpb_pb2
from binlog.runtime.security import Security
from grpc import aio

from tests.support.grpc_service import add_service


def _credentials(security: Security) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(Path(security.ssl_key).read_bytes(), Path(security.ssl_cert).read_bytes())])


class StubPD:
    """A stub of PD. Running, it returns the wall clock, always more than before. Held, it returns the same ceiling
    repeatedly.

    Answers of a held clock have count 0, so that a client can distinguish them from an allocator that repeats itself.
    """

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self.addr = ""
        self.asked = 0
        self._last_ts = 0
        self._held_ts: int | None = None
        self._server: aio.Server | None = None

    @classmethod
    async def start(cls, *, cluster_id: int = 1, addr: str = "127.0.0.1:0", security: Security | None = None) -> StubPD:
        """Start and return a stub. Its attribute `addr` contains the port."""
        stub = cls(cluster_id)
        server = aio.server()
        add_service(server, pdpb_pb2.DESCRIPTOR, "PD", stub)
        if security is not None and security.enabled:
            port = server.add_secure_port(addr, _credentials(security))
        else:
            port = server.add_insecure_port(addr)
        await server.start()
        stub.addr = f"{addr.rpartition(':')[0]}:{port}"
        stub._server = server
        return stub

    def set(self, ts: int, *, hold: bool = False) -> None:
        """Move the clock to `ts`. With `hold` it stays there; otherwise the next timestamp is above it."""
        self._held_ts = ts if hold else None
        self._last_ts = ts

    def run(self) -> None:
        """Let a held clock run again from its current value."""
        self._held_ts = None

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def allocate(self, count: int) -> tuple[int, int]:
        """Return the last ts of the batch, and how many were allocated."""
        self.asked += 1
        if self._held_ts is not None:
            return self._held_ts, 0
        self._last_ts = max(self._last_ts + count, compose(int(time.time() * 1000), count - 1))
        return self._last_ts, count

    async def GetMembers(self, request: Any, context: Any) -> Any:
        member = pdpb_pb2.Member(name="stub", member_id=1, client_urls=[self.addr])
        header = pdpb_pb2.ResponseHeader(cluster_id=self.cluster_id)
        return pdpb_pb2.GetMembersResponse(header=header, members=[member], leader=member)

    async def Tso(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            header = pdpb_pb2.ResponseHeader(cluster_id=self.cluster_id)
            if request.header.cluster_id not in (0, self.cluster_id):
                text = f"mismatch cluster id, need {self.cluster_id} but got {request.header.cluster_id}"
                header.error.CopyFrom(pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=text))
                yield pdpb_pb2.TsoResponse(header=header)
                continue
            end_ts, count = self.allocate(request.count)
            timestamp = pdpb_pb2.Timestamp(physical=physical_ms(end_ts), logical=logical(end_ts))
            yield pdpb_pb2.TsoResponse(header=header, count=count, timestamp=timestamp)
