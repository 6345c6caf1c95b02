"""The etcd in memory: the suite, and what tests do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from binlog.errors import EtcdError, WatchBroken

from tests.support.etcd_suite import EtcdSuite, take
from tests.support.memory_etcd import MemoryEtcd


@pytest.fixture
async def store() -> AsyncIterator[MemoryEtcd]:
    etcd = MemoryEtcd()
    yield etcd
    await etcd.close()


class TestMemoryEtcd(EtcdSuite):
    """All of it in one process."""


async def test_memory_etcd_that_is_down_refuses_requests_and_breaks_watches(store: MemoryEtcd) -> None:
    watch = store.watch("/", revision=1)
    waiting = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    store.fail("the machine burns")
    with pytest.raises(WatchBroken, match="the machine burns"):
        await waiting
    for attempt in (store.get("/a"), store.range("/"), store.put("/a", b""), store.txn([]), store.lease(1)):
        with pytest.raises(EtcdError, match="the machine burns"):
            await attempt
    store.recover()
    assert await store.get("/a") is None


async def test_memory_etcd_watch_below_compacted_revision_fails(store: MemoryEtcd) -> None:
    first = await store.put("/a", b"1")
    second = await store.put("/a", b"2")
    store.compact(second)
    with pytest.raises(WatchBroken, match=f"revision {second} is compacted"):
        await take(store.watch("/", revision=first), 1)
    waiting = asyncio.ensure_future(take(store.watch("/", revision=second), 1))
    await store.put("/a", b"3")
    assert (await waiting)[0].kv.value == b"3"


async def test_memory_etcd_deletes_keys_of_expired_lease(store: MemoryEtcd) -> None:
    lease = await store.lease(60)
    await store.put("/a", b"1", lease=lease.id)
    store.expire(lease.id)
    assert await store.get("/a") is None
