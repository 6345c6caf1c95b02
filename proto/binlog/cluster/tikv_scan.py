"""Reads ranges of TiKV's keys as they were at one ts.

PD tells which region has a key, and where the region's leader is. TiKV refuses a request if the region has moved or was
split, and if a transaction that began before the ts has locked a key: then the region is looked up again and the
request repeated, until a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio

from binlog.cluster.tikv import REQUEST_TIMEOUT_S, Region, StoreUnavailable, TiKV
from binlog.errors import TimestampUnavailable
from binlog.pb import tikv_pb2
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.security import Security

PAGE_KEYS = 256
RETRY_FOR_S = 10.0
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 1.0
# A page may be long: the description of a table with thousands of partitions has a megabyte.
_OPTIONS = (("grpc.max_receive_message_length", -1),)

Pairs = list[tuple[bytes, bytes]]


@dataclass(eq=False)
class TiKVScan:
    """The keys of the TiKV cluster whose PD is at `pd_urls`, at `read_ts`, which is not below PD's GC safepoint."""

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
        _check(answer, region)
        pairs = [(pair.key, pair.value) for pair in answer.pairs]
        return pairs, pairs[-1][0] + b"\0" if len(pairs) >= self.page_keys else until

    async def _at(self, key: bytes) -> tuple[Region, aio.Channel]:
        region, channel = self._region, self._channel
        if region is None or channel is None or key < region.start or (region.end and key >= region.end):
            await self.close()
            region = await self._tikv.region(key)
            channel = open_channel(region.address, self.security, _OPTIONS)
            self._region, self._channel = region, channel
        return region, channel


def _check(answer: Any, region: Region) -> None:
    if answer.HasField("region_error"):
        raise StoreUnavailable(f"TiKV at {region.address}: {answer.region_error.message}")
    errors = [answer.error] if answer.HasField("error") else []
    errors += [pair.error for pair in answer.pairs if pair.HasField("error")]
    for error in errors:
        if error.HasField("locked"):
            detail = f"a key is locked by the transaction of start_ts {error.locked.lock_version}"
            raise StoreUnavailable(f"TiKV at {region.address}: {detail}")
        raise StoreUnavailable(f"TiKV at {region.address}: {error}")
