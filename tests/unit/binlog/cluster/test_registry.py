"""Records compare with the revision their writer saw (correctness rules 2 and 8)."""

from __future__ import annotations

import asyncio

import pytest
from binlog.cluster.registry import NodeStatus, Registry, State, check_node_id, key_of
from binlog.cluster.writers import GLOBAL_ID_KEY, PublishedJobs, key_of_version
from binlog.errors import DecodeError, EtcdError, NodeNotFound, RegistryConflict

from tests.support.memory_etcd import MemoryEtcd


def status(node_id: str = "p1", state: State = State.ONLINE, ts: int = 0) -> NodeStatus:
    return NodeStatus(node_id, "h:1", state, max_commit_ts=ts)


async def test_registry_creates_lists_and_gets_records() -> None:
    registry = Registry(MemoryEtcd())
    assert (await registry.list("pumps")).nodes == ()
    revision = await registry.create("pumps", status("p2"))
    await registry.create("pumps", status("p1"))
    await registry.create("drainers", status("d1"))
    listing = await registry.list("pumps")
    assert [node.status.node_id for node in listing.nodes] == ["p1", "p2"]
    found = await registry.get("pumps", "p2")
    assert found is not None
    assert found.mod_revision == revision
    assert await registry.get("pumps", "d1") is None
    with pytest.raises(RegistryConflict, match="key /tidb-binlog/v1/pumps/p1 in etcd already exists"):
        await registry.create("pumps", status("p1"))


async def test_registry_update_with_outdated_revision_is_refused() -> None:
    """Rule 2: an operator forces the pump offline while it lives; its next heartbeat must not undo that."""
    registry = Registry(MemoryEtcd())
    mine = await registry.create("pumps", status())
    mine = await registry.update("pumps", status(ts=5), mod_revision=mine)
    operator = await registry.get("pumps", "p1")
    assert operator is not None
    await registry.update("pumps", status(state=State.OFFLINE), mod_revision=operator.mod_revision)
    with pytest.raises(RegistryConflict, match=r"another process.*offline"):
        await registry.update("pumps", status(ts=6), mod_revision=mine)
    now = await registry.get("pumps", "p1")
    assert now is not None
    assert now.status.state is State.OFFLINE


async def test_registry_update_of_deleted_record_is_refused() -> None:
    etcd = MemoryEtcd()
    registry = Registry(etcd)
    revision = await registry.create("pumps", status())
    await etcd.delete(key_of("pumps", "p1"))
    with pytest.raises(NodeNotFound, match="key /tidb-binlog/v1/pumps/p1 in etcd not found"):
        await registry.update("pumps", status(), mod_revision=revision)
    with pytest.raises(ValueError, match="needs the revision"):
        await registry.update("pumps", status(), mod_revision=0)


async def test_equal_lists_differ_in_mod_revision() -> None:
    """Rule 8: offline → online → offline between two lists leaves the same states, but not the same revisions."""
    registry = Registry(MemoryEtcd())
    revision = await registry.create("pumps", status(state=State.OFFLINE))
    before = await registry.list("pumps")
    revision = await registry.update("pumps", status(), mod_revision=revision)
    await registry.update("pumps", status(state=State.OFFLINE), mod_revision=revision)
    after = await registry.list("pumps")
    assert [n.status for n in before.nodes] == [n.status for n in after.nodes]
    assert before.nodes != after.nodes


async def test_an_unreadable_record_is_named_and_does_not_hide_others() -> None:
    etcd = MemoryEtcd()
    registry = Registry(etcd)
    await registry.create("pumps", status("p1"))
    await etcd.put(key_of("pumps", "bad"), b"{")
    listing = await registry.list("pumps")
    assert [node.status.node_id for node in listing.nodes] == ["p1"]
    assert listing.unreadable == ("/tidb-binlog/v1/pumps/bad",)
    with pytest.raises(DecodeError, match="/tidb-binlog/v1/pumps/bad: node status"):
        await registry.get("pumps", "bad")


async def test_registry_watch_from_listing_revision_misses_no_change() -> None:
    etcd = MemoryEtcd()
    registry = Registry(etcd)
    listing = await registry.list("pumps")
    await registry.create("pumps", status("p1"))
    await etcd.put(key_of("pumps", "bad"), b"{")
    await registry.create("drainers", status("d1"))
    await etcd.delete(key_of("pumps", "p1"))
    seen = []
    async with asyncio.timeout(60):
        async for changes in registry.watch("pumps", listing.revision):
            seen += [(node_id, record.status.state if record else None) for node_id, record in changes]
            if len(seen) == 2:
                break
    assert seen == [("p1", State.ONLINE), ("p1", None)]


def test_check_node_id_refuses_empty_id_and_slash() -> None:
    """R-06: a slash would break listing."""
    assert check_node_id("  host:8250\n") == "host:8250"
    for bad in ("", "  ", "a/b", "a\x00b"):
        with pytest.raises(ValueError, match="node id"):
            check_node_id(bad)


# Jobs and counters in etcd.


async def test_jobs_come_in_version_order() -> None:
    etcd = MemoryEtcd()
    for version in (100, 9, 10):
        await etcd.put(key_of_version(version), str(version).encode())
    assert await PublishedJobs(etcd).all() == [(9, b"9"), (10, b"10"), (100, b"100")]


async def test_counters_never_repeat_between_writers() -> None:
    etcd = MemoryEtcd()
    writers = [PublishedJobs(etcd) for _ in range(8)]
    ids = await asyncio.gather(*(w.next_id() for w in writers for _ in range(5)))
    assert sorted(ids) == list(range(1, 41))
    versions = await asyncio.gather(*(w.next_schema_version() for w in writers))
    assert sorted(versions) == list(range(1, 9))


async def test_published_jobs_watch_returns_jobs_after_listing_revision() -> None:
    etcd = MemoryEtcd()
    jobs = PublishedJobs(etcd)
    await etcd.put(key_of_version(1), b"a")
    _, revision = await jobs.listing()
    await etcd.put(key_of_version(2), b"b")
    async for found in jobs.watch(revision):
        assert found == [(2, b"b")]
        break


async def test_invalid_id_counter_in_etcd_is_named() -> None:
    etcd = MemoryEtcd()
    await etcd.put(GLOBAL_ID_KEY, b"many")
    with pytest.raises(EtcdError, match="/ddl/global_id in etcd holds b'many'"):
        await PublishedJobs(etcd).next_id()
