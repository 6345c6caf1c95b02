"""What every `Etcd` must do: run on the one in memory by the unit tests and on a real one by the integration tests.

A subclass gives the fixture `store`; keys live below `self.root`, because a real etcd may be shared by tests.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from binlog.cluster.etcd import KV, Compare, Etcd, Event, EventKind, Put
from binlog.errors import EtcdError, LeaseExpired, WatchBroken

WAIT_S = 60.0


async def take(watch: AsyncIterator[list[Event]], count: int) -> list[Event]:
    """The next `count` events, however they are grouped."""
    events: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        while len(events) < count:
            events += await anext(watch)
    return events


class EtcdSuite:
    @pytest.fixture(autouse=True)
    def _root(self) -> None:
        self.root = f"/test/{uuid.uuid4().hex}"

    async def test_get_put_range(self, store: Etcd) -> None:
        assert await store.get(f"{self.root}/a") is None
        first = await store.put(f"{self.root}/b", b"2")
        second = await store.put(f"{self.root}/a", b"1\x00\xff")
        assert second == first + 1
        assert await store.get(f"{self.root}/a") == KV(f"{self.root}/a", b"1\x00\xff", second)
        kvs, revision = await store.range(f"{self.root}/")
        assert kvs == [KV(f"{self.root}/a", b"1\x00\xff", second), KV(f"{self.root}/b", b"2", first)]
        assert revision == second

    async def test_a_prefix_is_bytes_not_a_folder(self, store: Etcd) -> None:
        for name in ("pumps/a", "pumps0", "pumps"):
            await store.put(f"{self.root}/{name}", b"")
        assert [kv.key for kv in (await store.range(f"{self.root}/pumps/"))[0]] == [f"{self.root}/pumps/a"]
        assert len((await store.range(f"{self.root}/pumps"))[0]) == 3

    async def test_put_if(self, store: Etcd) -> None:
        key = f"{self.root}/k"
        assert await store.put_if(key, b"x", mod_revision=5) is None
        created = await store.put_if(key, b"1", mod_revision=0)
        assert created is not None
        assert await store.put_if(key, b"2", mod_revision=0) is None
        changed = await store.put_if(key, b"3", mod_revision=created)
        assert changed is not None
        assert await store.put_if(key, b"4", mod_revision=created) is None
        assert await store.get(key) == KV(key, b"3", changed)

    async def test_only_one_of_many_creators_wins(self, store: Etcd) -> None:
        key = f"{self.root}/k"
        won = await asyncio.gather(*(store.put_if(key, str(i).encode(), mod_revision=0) for i in range(20)))
        assert len([revision for revision in won if revision is not None]) == 1

    async def test_delete(self, store: Etcd) -> None:
        key = f"{self.root}/k"
        await store.delete(key)
        await store.put(key, b"1")
        await store.delete(key)
        assert await store.get(key) is None

    async def test_txn_is_all_or_nothing(self, store: Etcd) -> None:
        a, b, c = (f"{self.root}/{name}" for name in "abc")
        revision = await store.put(a, b"1")
        wrong = [Compare(a, mod_revision=revision), Compare(b, mod_revision=3)]
        assert await store.txn(wrong, [Put(c, b"x")], [a]) is None
        assert await store.get(c) is None
        right = [Compare(a, mod_revision=revision), Compare(b, mod_revision=0)]
        done = await store.txn(right, [Put(b, b"2"), Put(c, b"3")], [a])
        assert done is not None
        kvs, _ = await store.range(self.root)
        assert kvs == [KV(b, b"2", done), KV(c, b"3", done)]
        with pytest.raises(EtcdError, match="duplicate key"):
            await store.txn([], [Put(b, b"1"), Put(b, b"2")])

    async def test_watch_sees_what_came_after_the_revision(self, store: Etcd) -> None:
        """Past and coming changes in order, and nothing of other prefixes."""
        a, b = f"{self.root}/a", f"{self.root}/b"
        await store.put(a, b"before")
        _, revision = await store.range(self.root)
        missed = await store.put(a, b"missed")
        watch = store.watch(f"{self.root}/", revision=revision)
        waiting = asyncio.ensure_future(take(watch, 4))
        await store.put(f"{self.root}0", b"other prefix")
        deleted = await store.txn([], [Put(b, b"new")], [a])
        assert deleted is not None
        last = await store.put(b, b"newer")
        assert sorted(await waiting, key=lambda e: (e.kv.mod_revision, e.kv.key)) == [
            Event(EventKind.PUT, KV(a, b"missed", missed)),
            Event(EventKind.DELETE, KV(a, b"", deleted)),
            Event(EventKind.PUT, KV(b, b"new", deleted)),
            Event(EventKind.PUT, KV(b, b"newer", last)),
        ]
        await watch.aclose()  # type: ignore[attr-defined]

    async def test_two_watches_see_the_same(self, store: Etcd) -> None:
        revision = await store.put(f"{self.root}/a", b"0")
        both = [asyncio.ensure_future(take(store.watch(self.root, revision=revision), 50)) for _ in range(2)]
        for i in range(50):
            await store.put(f"{self.root}/{i % 3}", str(i).encode())
        one, other = await asyncio.gather(*both)
        assert one == other
        assert [event.kv.value for event in one] == [str(i).encode() for i in range(50)]

    async def test_an_ended_lease_takes_its_keys(self, store: Etcd) -> None:
        lease = await store.lease(60)
        assert lease.ttl_s >= 60
        revision = await store.put(f"{self.root}/a", b"1", lease=lease.id)
        await store.put_if(f"{self.root}/b", b"2", mod_revision=0, lease=lease.id)
        await store.put(f"{self.root}/c", b"3")
        found = await store.get(f"{self.root}/a")
        assert found is not None
        assert found.lease_id == lease.id
        assert await lease.keep_alive() > 0
        watch = store.watch(self.root, revision=revision)
        waiting = asyncio.ensure_future(take(watch, 4))
        await lease.revoke()
        gone = [event.kv.key for event in await waiting if event.kind is EventKind.DELETE]
        assert sorted(gone) == [f"{self.root}/a", f"{self.root}/b"]
        assert [kv.key for kv in (await store.range(self.root))[0]] == [f"{self.root}/c"]

    async def test_a_lease_that_is_gone(self, store: Etcd) -> None:
        lease = await store.lease(60)
        await lease.revoke()
        await lease.revoke()
        with pytest.raises(LeaseExpired):
            await lease.keep_alive()
        with pytest.raises(EtcdError, match="lease not found"):
            await store.put(f"{self.root}/a", b"1", lease=lease.id)

    async def test_a_lease_without_keep_alive_ends(self, store: Etcd) -> None:
        lease = await store.lease(1)
        revision = await store.put(f"{self.root}/a", b"1", lease=lease.id)
        (event,) = await take(store.watch(self.root, revision=revision), 1)
        assert event.kind is EventKind.DELETE

    async def test_a_put_without_lease_detaches(self, store: Etcd) -> None:
        lease = await store.lease(60)
        await store.put(f"{self.root}/a", b"1", lease=lease.id)
        await store.put(f"{self.root}/a", b"2")
        await lease.revoke()
        assert await store.get(f"{self.root}/a") is not None

    async def test_close_ends_a_watch_with_an_error(self, store: Etcd) -> None:
        """Not with a cancellation, which its owner would take for its own."""
        revision = await store.put(f"{self.root}/a", b"1")
        watch = store.watch(self.root, revision=revision)
        await store.put(f"{self.root}/a", b"2")
        await take(watch, 1)
        waiting = asyncio.ensure_future(take(watch, 1))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(WatchBroken):
            await waiting
