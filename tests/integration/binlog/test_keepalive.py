"""A lease that is renewed from a thread, on a real etcd."""

from __future__ import annotations

import asyncio

import pytest
from binlog.cluster.etcd import KeepAliveThread, connect_etcd
from binlog.cluster.tso import boot_clock_s
from binlog.errors import LeaseExpired

from tests.support.servers import Etcd, wait_until

pytestmark = pytest.mark.integration


@pytest.mark.slow
async def test_keep_alive_thread_renews_lease_until_stopped(etcd: Etcd) -> None:
    client = connect_etcd([etcd.endpoint])
    began_s = boot_clock_s()
    lease = await client.lease(4)
    kept = KeepAliveThread(["http://127.0.0.1:1", etcd.endpoint], None, lease, began_s)
    first_s = kept.until_s
    assert first_s <= began_s + lease.ttl_s
    await asyncio.to_thread(wait_until, lambda: boot_clock_s() > began_s + 2 * lease.ttl_s, what="two lives")
    assert kept.until_s > first_s, "one endpoint is enough"
    assert kept.until_s <= boot_clock_s() + lease.ttl_s, "never longer than it may live"
    assert await lease.keep_alive() > 0
    kept.stop()
    async with asyncio.timeout(90):
        with pytest.raises(LeaseExpired):
            while True:
                await asyncio.sleep(2 * lease.ttl_s + 1)  # etcd checks now and then
                await lease.keep_alive()
    await client.close()


async def test_keep_alive_thread_notices_revoked_lease(etcd: Etcd) -> None:
    client = connect_etcd([etcd.endpoint])
    lease = await client.lease(2)
    kept = KeepAliveThread([etcd.endpoint], None, lease, boot_clock_s())
    await lease.revoke()
    await asyncio.to_thread(wait_until, lambda: kept.until_s < 0, what="the thread to hear of it")
    kept.stop()
    await client.close()
