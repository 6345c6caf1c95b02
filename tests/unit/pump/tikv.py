"""A PD and a TiKV in one gRPC server of this process, for what becomes of transactions."""

from __future__ import annotations

from typing import Any

import grpc
from binlog.pb import pdpb_pb2, tikv_pb2

from tests.support.stub_tikv import PDWithTiKV


class StubTiKV(PDWithTiKV):
    """`writes`: (type, start_ts, commit_ts) at the one key; `locked_ts`: start_ts of its lock, alive or not.

    `safepoint_ts`: PD's; `collect_at` is a method in whose course the safepoint moves on to `collected_ts` and the
    writes up to there are removed. `keys` and `asked_status` tell what was asked.
    """

    def __init__(self, cluster_id: int) -> None:
        super().__init__(cluster_id)
        self.writes: list[tuple[int, int, int]] = []
        self.locked_ts = 0
        self.alive = False
        self.region_error = ""
        self.leader = True
        self.safepoint_ts = 0
        self.tells_safepoint = True
        self.collect_at = ""
        self.collected_ts = 0
        self.keys: list[bytes] = []
        self.asked_status: list[Any] = []

    def _collect(self, method: str) -> None:
        if self.collect_at == method:
            self.safepoint_ts = self.collected_ts
            self.writes = [write for write in self.writes if write[2] > self.safepoint_ts]

    async def GetGCSafePoint(self, request: Any, context: Any) -> Any:
        self._collect("GetGCSafePoint")
        assert request.header.cluster_id == 1
        if not self.tells_safepoint:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetGCSafePoint")
        return pdpb_pb2.GetGCSafePointResponse(safe_point=self.safepoint_ts)

    async def GetRegion(self, request: Any, context: Any) -> Any:
        self.keys.append(request.region_key)
        peer = pdpb_pb2.Peer(id=3, store_id=1)
        region = pdpb_pb2.Region(id=2, region_epoch=pdpb_pb2.RegionEpoch(conf_ver=1, version=7), peers=[peer])
        return pdpb_pb2.GetRegionResponse(region=region, leader=peer if self.leader else None)

    async def MvccGetByKey(self, request: Any, context: Any) -> Any:
        assert (request.context.region_id, request.context.region_epoch.version, request.context.peer.id) == (2, 7, 3)
        self._collect("MvccGetByKey")
        if self.region_error:
            return tikv_pb2.MvccGetByKeyResponse(region_error=tikv_pb2.RegionError(message=self.region_error))
        info = tikv_pb2.MvccInfo(
            writes=[
                tikv_pb2.MvccWrite(type=tikv_pb2.Op.Name(tp), start_ts=start, commit_ts=end)
                for tp, start, end in self.writes
            ],
            lock=tikv_pb2.MvccLock(start_ts=self.locked_ts) if self.locked_ts else None,
        )
        return tikv_pb2.MvccGetByKeyResponse(info=info)

    async def KvCheckTxnStatus(self, request: Any, context: Any) -> Any:
        self.asked_status.append(request)
        self._collect("KvCheckTxnStatus")
        if self.locked_ts == request.lock_ts:
            return tikv_pb2.CheckTxnStatusResponse(lock_ttl=3000 if self.alive else 0, action=tikv_pb2.NO_ACTION)
        if not request.rollback_if_not_exist:
            missing = tikv_pb2.TxnNotFound(start_ts=request.lock_ts)
            return tikv_pb2.CheckTxnStatusResponse(error=tikv_pb2.KeyError(txn_not_found=missing))
        return tikv_pb2.CheckTxnStatusResponse(action=tikv_pb2.LOCK_NOT_EXIST_ROLLBACK)
