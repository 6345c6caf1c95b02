"""A plain etcd is told apart from a PD, and the cluster's id and source live in it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.timestamp import LEADER_KEY, cluster_id, connect_timestamps
from binlog.errors import TimestampSourceMismatch, TimestampUnavailable
from binlog.runtime.fields import UpstreamSection

from tests.support.servers import Etcd
from tests.support.stub_pd import StubPD

pytestmark = pytest.mark.integration


async def test_plain_etcd_leads_to_own_timestamps_and_one_cluster_id(etcd: Etcd, closing: AsyncExitStack) -> None:
    """Programs that start together agree on one id; timestamps come once a pump is elected."""
    clients = [connect_etcd([etcd.endpoint]) for _ in range(4)]
    for client in clients:
        closing.push_async_callback(client.close)
    await clients[0].get("/ready")
    cfg = UpstreamSection(pd_urls=(etcd.endpoint,))
    ids = set(await asyncio.gather(*(cluster_id(client, cfg) for client in clients)))
    assert len(ids) == 1
    source = await connect_timestamps(clients[0], cfg, wait_s=0.2)
    closing.push_async_callback(source.close)
    with pytest.raises(TimestampUnavailable, match="no pump is elected"):
        await source.get()
    elected = await StubPD.start(cluster_id=ids.pop())
    closing.push_async_callback(elected.close)
    await clients[1].put(LEADER_KEY, elected.addr.encode())
    assert await source.get() < await source.get()


async def test_a_pd_beside_a_cluster_with_own_timestamps_is_refused(etcd: Etcd, closing: AsyncExitStack) -> None:
    client = connect_etcd([etcd.endpoint])
    closing.push_async_callback(client.close)
    await client.get("/ready")
    await cluster_id(client, UpstreamSection(pd_urls=(etcd.endpoint,)))
    pd = await StubPD.start()
    closing.push_async_callback(pd.close)
    with pytest.raises(TimestampSourceMismatch, match=r'timestamps from "own".*but a PD answers at'):
        await connect_timestamps(client, UpstreamSection(pd_urls=(etcd.endpoint,), pd_addr=pd.addr))
