"""Whole transactions of nothing, for what pumps do with them."""

from __future__ import annotations

from collections import Counter

from binlog.cluster.etcd import connect_etcd
from binlog.cluster.timestamp import connect_timestamps
from binlog.runtime.fields import UpstreamSection

from pumpclient.client import PumpsClient

_KEY, _VALUE = b"t\x80key", b"\x08\x01"


async def write(client: PumpsClient, upstream: UpstreamSection, endpoint: str, count: int) -> Counter[str]:
    """So many transactions by `client`, one after the other, with timestamps of `upstream`; who got them. `endpoint`:
    of its etcd."""
    etcd = connect_etcd([endpoint])
    timestamps = await connect_timestamps(etcd, upstream, None)
    chosen: Counter[str] = Counter()
    try:
        for _ in range(count):
            start_ts = await timestamps.get()
            chosen[await client.write_prewrite(start_ts, _KEY, _VALUE)] += 1
            await client.commit(start_ts, await timestamps.get())
    finally:
        await timestamps.close()
        await etcd.close()
    return chosen
