"""The service TiDB and Go drainers know: WriteBinlog and PullBinlogs (`1.3`, `1.9`). Bytes in, bytes out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from binlog.errors import ClusterMismatch, DecodeError
from binlog.log import get_logger
from binlog.pb import pump_pb2
from google.protobuf.message import DecodeError as ProtobufError

from pump.edge import Service
from pump.errors import Stopping
from pump.gauges import LOSS, RPC_SECONDS
from pump.store import Store

PULL_BYTES_MAX = 1 << 20

_log = get_logger("pump.service")


class Gate:
    """What both services ask before they touch the store: is the pump ready, is the request for this cluster, and
    does it take prewrites now."""

    def __init__(self, cluster_id: int, refuses_prewrites: Callable[[], str]) -> None:
        """`refuses_prewrites`: the state that forbids them, or ""."""
        self.cluster_id = cluster_id
        self.refuses_prewrites = refuses_prewrites
        self.closed: str = "the pump is starting"

    def check(self, cluster_id: int) -> None:
        """ClusterMismatch (P-RPC-01), or Stopping before the pump serves and after."""
        if cluster_id != self.cluster_id:
            raise ClusterMismatch(cluster_id, self.cluster_id)
        if self.closed:
            raise Stopping(self.closed)


class PumpService:
    """Handlers of `binlog.Pump`."""

    def __init__(self, store: Store, gate: Gate, *, slow_write_s: float = 1.0) -> None:
        self._store = store
        self._gate = gate
        self._slow_write_s = slow_write_s
        self.pullers = 0

    def service(self) -> Service:
        return Service(
            "binlog.Pump",
            unary={"WriteBinlog": self.write_binlog},
            streaming={"PullBinlogs": self.pull_binlogs},
            bidi={},
            upstream=True,
        )

    async def write_binlog(self, data: bytes) -> bytes:
        """One binlog, durable when this returns (P-RPC-02, P-RPC-03, P-RPC-07)."""
        try:
            request = pump_pb2.WriteBinlogReq.FromString(data)
        except ProtobufError as error:
            raise DecodeError("WriteBinlogReq", offset=0, detail=str(error)) from error
        self._gate.check(request.clusterID)
        began_s = time.monotonic()
        (refused,) = await self._store.write([request.payload], refuse_prewrites=self._gate.refuses_prewrites())
        took_s = time.monotonic() - began_s
        RPC_SECONDS.labels("WriteBinlog", "succ" if refused is None else "fail").observe(took_s)
        if refused is not None:
            LOSS.inc()
            _log.warning("write refused", error=refused, bytes=len(request.payload))
            raise refused
        if took_s >= self._slow_write_s:
            _log.warning("slow write", seconds=round(took_s, 3), bytes=len(request.payload))
        return b""

    async def pull_binlogs(self, data: bytes) -> AsyncIterator[bytes]:
        """Everything after startFrom.offset, fakes included, as it becomes resolved (P-RPC-09, P-PULL-04, -06).

        Purged positions and damage end it with a status, never with an EOF that looks like an end.
        """
        try:
            request = pump_pb2.PullBinlogReq.FromString(data)
        except ProtobufError as error:
            raise DecodeError("PullBinlogReq", offset=0, detail=str(error)) from error
        self._gate.check(request.clusterID)
        last_ts = max(0, request.startFrom.offset)
        self._store.reader.check_position(last_ts)
        self.pullers += 1
        try:
            while not self._gate.closed:
                until_ts = await self._store.resolver.passed(last_ts)
                async for chunk in self._store.pull(last_ts, until_ts, bytes_max=PULL_BYTES_MAX, fakes=True):
                    for served in chunk:
                        yield _entity(served.start_ts, served.commit_ts, served.payload)
                last_ts = until_ts
        finally:
            self.pullers -= 1


def _entity(start_ts: int, commit_ts: int, payload: bytes) -> bytes:
    entity = pump_pb2.Entity(
        pos=pump_pb2.Pos(), payload=payload, meta=pump_pb2.Meta(startTs=start_ts, commitTs=commit_ts)
    )
    encoded: bytes = pump_pb2.PullBinlogResp(entity=entity).SerializeToString()
    return encoded
