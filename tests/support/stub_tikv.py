"""A PD and a TiKV with several regions in one gRPC server of this process, for scans of keys."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Self

import grpc
from binlog.pb import pdpb_pb2, tikv_pb2
from binlog.tidb.datum import decode_bytes, encode_bytes
from grpc import aio

from tests.support.grpc_service import add_service
from tests.support.stub_pd import StubPD


class PDWithTiKV(StubPD):
    """A PD, and the one TiKV that it knows, in one server."""

    @classmethod
    async def start(cls, **_: Any) -> Self:
        stub = cls(1)
        server = aio.server()
        add_service(server, pdpb_pb2.DESCRIPTOR, "PD", stub)
        add_service(server, tikv_pb2.DESCRIPTOR, "Tikv", stub)
        stub.addr = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        stub._server = server
        return stub

    async def GetStore(self, request: Any, context: Any) -> Any:
        return pdpb_pb2.GetStoreResponse(store=pdpb_pb2.Store(id=request.store_id, address=self.addr))


class ScannedTiKV(PDWithTiKV):
    """`data`: its keys; `splits`: the keys at which regions begin, beside the first. `refusals`: answers to the next
    scans: "region" (it moved), "split" (at `splits_later`), "lock", "pair" (a lock within the answer), or "gone".
    `safepoints`: answered in turn, the last one again and again. `scanned`: (version, key) of each scan.
    """

    def __init__(self, cluster_id: int) -> None:
        super().__init__(cluster_id)
        self.data: dict[bytes, bytes] = {}
        self.splits: list[bytes] = []
        self.splits_later: list[bytes] = []
        self.refusals: list[str] = []
        self.safepoints = [0]
        self.scanned: list[tuple[int, bytes]] = []
        self.located = 0

    async def GetGCSafePoint(self, request: Any, context: Any) -> Any:
        ts = self.safepoints.pop(0) if len(self.safepoints) > 1 else self.safepoints[0]
        return pdpb_pb2.GetGCSafePointResponse(safe_point=ts)

    async def GetRegion(self, request: Any, context: Any) -> Any:
        self.located += 1
        number = bisect_right(self.splits, decode_bytes(request.region_key)[0])
        begins = ["", *map(encode_bytes, self.splits), ""]
        peer = pdpb_pb2.Peer(id=3, store_id=1)
        epoch = pdpb_pb2.RegionEpoch(conf_ver=1, version=len(self.splits))
        region = pdpb_pb2.Region(
            id=number, start_key=begins[number] or b"", end_key=begins[number + 1] or b"", region_epoch=epoch
        )
        return pdpb_pb2.GetRegionResponse(region=region, leader=peer)

    async def KvScan(self, request: Any, context: Any) -> Any:
        self.scanned.append((request.version, request.start_key))
        refused = self.refusals.pop(0) if self.refusals else ""
        if refused == "gone":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the store is restarting")
        if refused == "split":
            self.splits += self.splits_later
        if refused == "region" or request.context.region_epoch.version != len(self.splits):
            return tikv_pb2.ScanResponse(region_error=tikv_pb2.RegionError(message="epoch not match"))
        locked = tikv_pb2.KeyError(locked=tikv_pb2.LockInfo(lock_version=77))
        if refused == "lock":
            return tikv_pb2.ScanResponse(error=locked)
        end = self.splits[request.context.region_id] if request.context.region_id < len(self.splits) else b"\xff"
        keys = [key for key in sorted(self.data) if request.start_key <= key < min(end, request.end_key)]
        pairs = [tikv_pb2.KvPair(key=key, value=self.data[key]) for key in keys[: request.limit]]
        return tikv_pb2.ScanResponse(pairs=[*pairs, tikv_pb2.KvPair(error=locked)] if refused == "pair" else pairs)
