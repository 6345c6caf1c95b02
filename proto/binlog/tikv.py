"""What TiKV knows of a transaction whose writer is gone: whether its primary key was committed (spec `1.8`).

PD tells which region holds the key and where that region's leader is; both are asked anew each time, for this happens
once in a while only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio

from binlog.channel import open_channel
from binlog.errors import BinlogError
from binlog.pb import pdpb_pb2, pdpb_pb2_grpc, tikv_pb2, tikv_pb2_grpc
from binlog.pd import ask_first
from binlog.security import Security
from binlog.tidb.memcomparable import encode_bytes

REQUEST_TIMEOUT_S = 5.0


class StoreUnavailable(BinlogError):
    """PD or TiKV did not say what became of a transaction; ask again."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a key is: its region as a request names it, and the address of the region's leader."""

    context: Any
    address: str


class TiKV:
    """The cluster whose PD answers at `pd_urls`."""

    def __init__(self, pd_urls: Sequence[str], security: Security | None = None) -> None:
        self._pd_urls = pd_urls
        self._security = security

    async def outcome(self, primary_key: bytes, start_ts: int, *, now_ts: int, give_up: bool) -> int | None:
        """The commit_ts of the transaction, 0 if it is rolled back, None while that is open.

        A lock that has outlived its time at `now_ts` is rolled back by asking, as any reader would do. With `give_up`
        a transaction of which there is no trace is rolled back there for good, so that it cannot commit any more.
        Raises StoreUnavailable, ClusterMismatch, TimestampUnavailable, NotPD.
        """
        place = await self._place(primary_key)
        channel = open_channel(place.address, self._security)
        try:
            stub = tikv_pb2_grpc.TikvStub(channel)  # type: ignore[no-untyped-call]
            return await _ask(stub, place, primary_key, start_ts, now_ts, give_up)
        except aio.AioRpcError as error:
            raise StoreUnavailable(f"TiKV at {place.address}: {error.code().name}: {error.details()}") from error
        finally:
            await channel.close()

    async def _place(self, key: bytes) -> _Place:
        leader = await ask_first(self._pd_urls, self._security)
        channel = open_channel(leader.address, self._security)
        try:
            stub = pdpb_pb2_grpc.PDStub(channel)  # type: ignore[no-untyped-call]
            header = pdpb_pb2.RequestHeader(cluster_id=leader.cluster_id)
            asked = pdpb_pb2.GetRegionRequest(header=header, region_key=encode_bytes(key))
            found = await stub.GetRegion(asked, timeout=REQUEST_TIMEOUT_S)
            peer = found.leader
            if not peer.store_id:
                raise StoreUnavailable(f"PD at {leader.address} knows no leader of the region of key {key.hex()}")
            request = pdpb_pb2.GetStoreRequest(header=header, store_id=peer.store_id)
            store = (await stub.GetStore(request, timeout=REQUEST_TIMEOUT_S)).store
        except aio.AioRpcError as error:
            raise StoreUnavailable(f"PD at {leader.address}: {error.code().name}: {error.details()}") from error
        finally:
            await channel.close()
        if not store.address:
            raise StoreUnavailable(f"PD at {leader.address} knows no address of store {peer.store_id}")
        region = found.region
        return _Place(tikv_pb2.Context(region_id=region.id, region_epoch=region.region_epoch, peer=peer), store.address)


async def _ask(stub: Any, place: _Place, key: bytes, start_ts: int, now_ts: int, give_up: bool) -> int | None:
    request = tikv_pb2.MvccGetByKeyRequest(context=place.context, key=key)
    answer = await stub.MvccGetByKey(request, timeout=REQUEST_TIMEOUT_S)
    if answer.HasField("region_error") or answer.error:
        raise StoreUnavailable(f"TiKV at {place.address}: {answer.error or answer.region_error.message}")
    for write in answer.info.writes:
        if write.start_ts == start_ts:
            if write.type == tikv_pb2.ROLLBACK:
                return 0
            if write.commit_ts > start_ts:
                return int(write.commit_ts)
    locked = answer.info.lock.start_ts == start_ts
    return await _check(stub, place, key, start_ts, now_ts, give_up) if locked or give_up else None


async def _check(stub: Any, place: _Place, key: bytes, start_ts: int, now_ts: int, give_up: bool) -> int | None:
    request = tikv_pb2.CheckTxnStatusRequest(
        context=place.context,
        primary_key=key,
        lock_ts=start_ts,
        caller_start_ts=start_ts,
        current_ts=now_ts,
        rollback_if_not_exist=give_up,
    )
    status = await stub.KvCheckTxnStatus(request, timeout=REQUEST_TIMEOUT_S)
    if status.HasField("region_error"):
        raise StoreUnavailable(f"TiKV at {place.address}: {status.region_error.message}")
    if status.HasField("error"):
        if status.error.HasField("txn_not_found"):
            return None
        raise StoreUnavailable(f"TiKV at {place.address}: {status.error}")
    if status.lock_ttl or status.action == tikv_pb2.LOCK_NOT_EXIST_DO_NOTHING:
        return None
    return int(status.commit_version)
