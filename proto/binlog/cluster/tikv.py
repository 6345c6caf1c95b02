"""TiKV client: the outcome of a transaction whose writer is gone, by its primary key, and ranges of keys at one ts.

PD returns the region of the key and the address of the region's leader. Both are queried each time and not cached,
because outcomes are rarely needed.

TiKV removes records of commits up to PD's GC safepoint. A commit that is found is certain; "rolled back", or no record,
is believed only for a transaction that began above the safepoint, which is read after TiKV's answer: whatever TiKV had
removed when it answered is at or below it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio

from binlog.cluster.pd import ask_first, gc_safepoint
from binlog.errors import BinlogError, TimestampUnavailable
from binlog.pb import pdpb_pb2, tikv_pb2
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.security import Security
from binlog.tidb.datum import decode_bytes, encode_bytes

REQUEST_TIMEOUT_S = 5.0
PAGE_KEYS = 256
RETRY_FOR_S = 10.0
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 1.0
# A page may be long: the description of a table with thousands of partitions has a megabyte.
_SCAN_OPTIONS = (("grpc.max_receive_message_length", -1),)

Pairs = list[tuple[bytes, bytes]]


class StoreUnavailable(BinlogError):
    """PD or TiKV did not return the outcome of a transaction. The query is retried."""


class BelowSafepoint(BinlogError):
    """TiKV has no commit record of a transaction that began at or below PD's GC safepoint; it may have been removed."""

    def __init__(self, start_ts: int, safepoint_ts: int) -> None:
        super().__init__(
            f"TiKV has no commit record of the transaction of start_ts {start_ts}, which began at or below PD's GC "
            f"safepoint {safepoint_ts}: whether it was committed can no longer be determined"
        )
        self.start_ts = start_ts
        self.safepoint_ts = safepoint_ts


@dataclass(frozen=True, slots=True)
class Region:
    """The location of a key: its region, in the form of a request's context, and the address of the region's leader.
    `start` and `end`: the region has the keys from `start` to below `end`, which is empty for the last region."""

    context: Any
    address: str
    start: bytes
    end: bytes


class TiKV:
    """The TiKV cluster whose PD is at `pd_urls`."""

    def __init__(self, pd_urls: Sequence[str], security: Security | None = None) -> None:
        self._pd_urls = pd_urls
        self._security = security

    async def outcome(self, primary_key: bytes, start_ts: int, *, now_ts: int, give_up: bool) -> int | None:
        """Return the transaction's commit_ts, 0 if it is rolled back, or None if that is not decided.

        If the transaction's lock has expired at `now_ts`, TiKV rolls the transaction back on this query, as on any
        reader's query. With `give_up`, a transaction without any record is rolled back permanently in TiKV, so that it
        cannot commit later. Raises BelowSafepoint, StoreUnavailable, ClusterMismatch, TimestampUnavailable or NotPD.
        """
        region = await self.region(primary_key)
        try:
            async with open_channel(region.address, self._security) as channel:
                stub = stub_of(channel, tikv_pb2.DESCRIPTOR, "Tikv")
                commit_ts, locked = await _find(stub, region, primary_key, start_ts)
                if locked or (give_up and commit_ts is None):
                    if not locked:  # the check writes a rollback record, which later queries would believe
                        await self._above_safepoint(start_ts)
                    commit_ts = await _check(stub, region, primary_key, start_ts, now_ts, give_up)
        except aio.AioRpcError as error:
            raise StoreUnavailable(f"TiKV at {region.address}: {error.code().name}: {error.details()}") from error
        if commit_ts == 0:
            await self._above_safepoint(start_ts)
        return commit_ts

    async def mvcc(self, key: bytes) -> Any:
        """Return the MvccGetByKeyResponse of a key: its lock, writes and values. Raises as `outcome` does."""
        region = await self.region(key)
        try:
            async with open_channel(region.address, self._security) as channel:
                stub = stub_of(channel, tikv_pb2.DESCRIPTOR, "Tikv")
                request = tikv_pb2.MvccGetByKeyRequest(context=region.context, key=key)
                return await stub.MvccGetByKey(request, timeout=REQUEST_TIMEOUT_S)
        except aio.AioRpcError as error:
            raise StoreUnavailable(f"TiKV at {region.address}: {error.code().name}: {error.details()}") from error

    async def _above_safepoint(self, start_ts: int) -> None:
        """Raise BelowSafepoint unless TiKV still keeps every record of the transaction."""
        leader = await ask_first(self._pd_urls, self._security)
        safepoint_ts = await gc_safepoint(leader, self._security)
        if start_ts <= safepoint_ts:
            raise BelowSafepoint(start_ts, safepoint_ts)

    async def region(self, key: bytes) -> Region:
        """Return where a key is, as PD knows it. Raises StoreUnavailable, TimestampUnavailable, NotPD, DecodeError."""
        leader = await ask_first(self._pd_urls, self._security)
        try:
            async with open_channel(leader.address, self._security) as channel:
                stub = stub_of(channel, pdpb_pb2.DESCRIPTOR, "PD")
                header = pdpb_pb2.RequestHeader(cluster_id=leader.cluster_id)
                asked = pdpb_pb2.GetRegionRequest(header=header, region_key=encode_bytes(key))
                found = await stub.GetRegion(asked, timeout=REQUEST_TIMEOUT_S)
                peer = found.leader
                if not peer.store_id:
                    raise StoreUnavailable(f"PD at {leader.address} reports no leader of the region of key {key.hex()}")
                request = pdpb_pb2.GetStoreRequest(header=header, store_id=peer.store_id)
                store = (await stub.GetStore(request, timeout=REQUEST_TIMEOUT_S)).store
        except aio.AioRpcError as error:
            raise StoreUnavailable(f"PD at {leader.address}: {error.code().name}: {error.details()}") from error
        if not store.address:
            raise StoreUnavailable(f"PD at {leader.address} reports no address of store {peer.store_id}")
        region = found.region
        context = tikv_pb2.Context(region_id=region.id, region_epoch=region.region_epoch, peer=peer)
        start, end = (decode_bytes(key)[0] if key else b"" for key in (region.start_key, region.end_key))
        return Region(context, store.address, start, end)


async def _find(stub: Any, region: Region, key: bytes, start_ts: int) -> tuple[int | None, bool]:
    """Return what TiKV has of a transaction under its primary key: the commit_ts (0: a rollback; None: neither commit
    nor rollback), and whether it is locked."""
    request = tikv_pb2.MvccGetByKeyRequest(context=region.context, key=key)
    answer = await stub.MvccGetByKey(request, timeout=REQUEST_TIMEOUT_S)
    if answer.HasField("region_error") or answer.error:
        raise StoreUnavailable(f"TiKV at {region.address}: {answer.error or answer.region_error.message}")
    for write in answer.info.writes:
        if write.start_ts == start_ts:
            if write.type == tikv_pb2.ROLLBACK:
                return 0, False
            if write.commit_ts > start_ts:
                return int(write.commit_ts), False
    return None, answer.info.lock.start_ts == start_ts


async def _check(stub: Any, region: Region, key: bytes, start_ts: int, now_ts: int, give_up: bool) -> int | None:
    request = tikv_pb2.CheckTxnStatusRequest(
        context=region.context,
        primary_key=key,
        lock_ts=start_ts,
        caller_start_ts=start_ts,
        current_ts=now_ts,
        rollback_if_not_exist=give_up,
    )
    status = await stub.KvCheckTxnStatus(request, timeout=REQUEST_TIMEOUT_S)
    if status.HasField("region_error"):
        raise StoreUnavailable(f"TiKV at {region.address}: {status.region_error.message}")
    if status.HasField("error"):
        if status.error.HasField("txn_not_found"):
            return None
        raise StoreUnavailable(f"TiKV at {region.address}: {status.error}")
    if status.lock_ttl or status.action == tikv_pb2.LOCK_NOT_EXIST_DO_NOTHING:
        return None
    return int(status.commit_version)


@dataclass(eq=False)
class TiKVScan:
    """Reads keys of the TiKV cluster whose PD is at `pd_urls`, at `read_ts`, which is not below PD's GC safepoint.

    TiKV refuses a request if the region has moved or was split, and if a transaction that began before the ts has
    locked a key: then the region is looked up again and the request repeated, until a deadline.
    """

    pd_urls: Sequence[str]
    security: Security | None
    read_ts: int
    page_keys: int = PAGE_KEYS
    retry_for_s: float = RETRY_FOR_S
    _region: Region | None = None
    _channel: aio.Channel | None = None

    def __post_init__(self) -> None:
        self._tikv = TiKV(self.pd_urls, self.security)

    async def scan(self, prefix: bytes) -> Pairs:
        """Return the keys that begin with `prefix`, in order, with their values. Raises StoreUnavailable,
        TimestampUnavailable, NotPD, DecodeError."""
        at, end = prefix, prefix[:-1] + bytes((prefix[-1] + 1,))
        found: Pairs = []
        while at < end:
            pairs, at = await self._page(at, end)
            found += pairs
        return found

    async def close(self) -> None:
        channel, self._channel, self._region = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def _page(self, at: bytes, end: bytes) -> tuple[Pairs, bytes]:
        """Return the next pairs, and the key with which to continue."""
        deadline_s, wait_s = time.monotonic() + self.retry_for_s, BACKOFF_S_MIN
        while True:
            try:
                return await self._ask(at, end)
            except (StoreUnavailable, TimestampUnavailable):
                await self.close()
                if time.monotonic() + wait_s > deadline_s:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, BACKOFF_S_MAX)

    async def _ask(self, at: bytes, end: bytes) -> tuple[Pairs, bytes]:
        region, channel = await self._at(at)
        until = min(end, region.end or end)
        if not region.start <= at < until:
            raise StoreUnavailable(f"PD returned a region that does not have the key {at.hex()}")
        request = tikv_pb2.ScanRequest(
            context=region.context, start_key=at, end_key=until, limit=self.page_keys, version=self.read_ts
        )
        stub = stub_of(channel, tikv_pb2.DESCRIPTOR, "Tikv")
        try:
            answer = await stub.KvScan(request, timeout=REQUEST_TIMEOUT_S)
        except aio.AioRpcError as error:
            raise StoreUnavailable(f"TiKV at {region.address}: {error.code().name}: {error.details()}") from error
        _check_scan(answer, region)
        pairs = [(pair.key, pair.value) for pair in answer.pairs]
        return pairs, pairs[-1][0] + b"\0" if len(pairs) >= self.page_keys else until

    async def _at(self, key: bytes) -> tuple[Region, aio.Channel]:
        region, channel = self._region, self._channel
        if region is None or channel is None or key < region.start or (region.end and key >= region.end):
            await self.close()
            region = await self._tikv.region(key)
            channel = open_channel(region.address, self.security, _SCAN_OPTIONS)
            self._region, self._channel = region, channel
        return region, channel


def _check_scan(answer: Any, region: Region) -> None:
    if answer.HasField("region_error"):
        raise StoreUnavailable(f"TiKV at {region.address}: {answer.region_error.message}")
    errors = [answer.error] if answer.HasField("error") else []
    errors += [pair.error for pair in answer.pairs if pair.HasField("error")]
    for error in errors:
        if error.HasField("locked"):
            detail = f"a key is locked by the transaction of start_ts {error.locked.lock_version}"
            raise StoreUnavailable(f"TiKV at {region.address}: {detail}")
        raise StoreUnavailable(f"TiKV at {region.address}: {error}")
