"""Rule 2, each part: every write of a pump's record compares with the revision of its own last one.

`after_look` happens in etcd between a pump's look at its record and what it does next, `before_write` just before a
write, `after_write` between the write and its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from binlog.cluster.etcd import KV, Compare, Put
from binlog.cluster.registry import NodeStatus, Registry, State, key_of
from binlog.cluster.tso import compose
from binlog.errors import EtcdError, RegistryConflict

from pump.cluster.node import Node
from tests.support.memory_etcd import MemoryEtcd

NOW = compose(1_700_000_000_000)
KEY = key_of("pumps", "p1")
FOREIGN = NodeStatus("p1", "elsewhere:1", State.OFFLINE)


class BusyEtcd(MemoryEtcd):
    """Others write, and answers get lost."""

    def __init__(self) -> None:
        super().__init__()
        self.after_look: Callable[[], Awaitable[object]] | None = None
        self.before_write: Callable[[], Awaitable[object]] | None = None
        self.after_write: Callable[[], Awaitable[object]] | None = None
        self.lose_answer = False

    async def get(self, key: str) -> KV | None:
        found = await super().get(key)
        if self.after_look is not None:
            happening, self.after_look = self.after_look, None
            await happening()
        return found

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        if self.before_write is not None:
            happening, self.before_write = self.before_write, None
            await happening()
        done = await super().txn(compares, puts, deletes)
        if self.after_write is not None:
            happening, self.after_write = self.after_write, None
            await happening()
        if self.lose_answer:
            self.lose_answer = False
            raise EtcdError("the answer was lost")
        return done

    async def foreign(self) -> int:
        return await self.put(KEY, FOREIGN.to_json())

    async def status(self) -> NodeStatus:
        found = await Registry(self).get("pumps", "p1")
        assert found is not None
        return found.status


def made(etcd: MemoryEtcd) -> Node:
    return Node(Registry(etcd), "p1", resolved_ts=lambda: 42)


async def registered(etcd: MemoryEtcd) -> Node:
    node = made(etcd)
    await node.register("127.0.0.1:8250", NOW)
    return node


@pytest.mark.parametrize("before", ["nobody", "a former life"])
async def test_registration_fails_if_record_changes_between_read_and_write(before: str) -> None:
    """Whoever wrote between the look and the write keeps the record; the other one does not start."""
    etcd = BusyEtcd()
    if before == "a former life":
        await registered(etcd)
    etcd.after_look = etcd.foreign
    with pytest.raises(RegistryConflict):
        await registered(etcd)
    assert await etcd.status() == FOREIGN


async def test_prewrites_are_refused_until_record_is_written() -> None:
    """A drainer lists the pumps: one that is not in the list yet must not take a prewrite."""
    etcd = BusyEtcd()
    node = made(etcd)
    meanwhile: list[str] = []

    async def look() -> None:
        meanwhile.append(node.refuses_prewrites)

    etcd.before_write = look
    await node.register("127.0.0.1:8250", NOW)
    assert meanwhile[0] != ""
    assert node.refuses_prewrites == ""


async def test_heartbeat_behind_foreign_write_writes_nothing() -> None:
    """Forced offline a moment before it."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    etcd.before_write = etcd.foreign
    with pytest.raises(RegistryConflict):
        await node.write()
    assert node.refuses_prewrites == "offline"
    assert await etcd.status() == FOREIGN


async def test_node_writes_no_more_after_foreign_write_was_seen() -> None:
    """Also where the record it knew is there again."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    await etcd.foreign()
    with pytest.raises(RegistryConflict):
        await node.write()
    etcd.before_write = etcd.foreign  # would be called by a write
    with pytest.raises(RegistryConflict, match="overwritten by another process"):
        await node.write()
    assert etcd.before_write is not None


async def test_foreign_write_after_lost_answer_is_not_taken_for_own_write() -> None:
    """Its own write is there no more: what stands in its place is not taken for its own."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    etcd.lose_answer = True
    with pytest.raises(EtcdError):
        await node.write()
    await etcd.foreign()
    with pytest.raises(RegistryConflict):
        await node.write()
    assert node.refuses_prewrites == "offline"
    assert await etcd.status() == FOREIGN


async def test_foreign_write_while_lost_answer_is_resolved_stops_node() -> None:
    """Between the look that finds our own write and the next write."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    etcd.lose_answer = True
    with pytest.raises(EtcdError):
        await node.write()

    async def not_yet() -> None:
        """The first look only tells that the revision is another one; the second finds what stands there."""
        etcd.after_look = etcd.foreign

    etcd.after_look = not_yet
    with pytest.raises(RegistryConflict):
        await node.write()
    assert await etcd.status() == FOREIGN


async def test_lost_answer_no_longer_excuses_a_record_after_next_write() -> None:
    """A record that equals the lost one later is somebody's: nothing of ours is uncertain any more."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    etcd.lose_answer = True
    with pytest.raises(EtcdError):
        await node.write()
    lost = await etcd.status()
    await node.write()
    await etcd.put(KEY, lost.to_json())
    with pytest.raises(RegistryConflict):
        await node.write()
    assert node.refuses_prewrites


@pytest.mark.parametrize("said", ["removed", "offline"])
async def test_rule_2_watch_stops_prewrites_at_once_after_foreign_write(said: str) -> None:
    """Between two heartbeats a prewrite could be acknowledged by a pump that no longer counts. Heartbeats, one whose
    answer was lost, and another pump's record are not foreign."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    watch = asyncio.create_task(node.watch())
    await _turns()
    etcd.lose_answer = True
    with pytest.raises(EtcdError):
        await node.write()
    await _turns()
    assert node.refuses_prewrites == "", "the answer was lost, not the record"
    for _ in range(3):
        await node.write()
        await _turns()
    await etcd.put(key_of("pumps", "p2"), NodeStatus("p2", "x:1", State.ONLINE).to_json())
    await _turns()
    assert node.refuses_prewrites == ""
    await (etcd.delete(KEY) if said == "removed" else etcd.foreign())
    await asyncio.wait_for(watch, 60)
    assert node.refuses_prewrites == said


async def test_watch_event_of_own_heartbeat_before_its_answer_is_not_foreign() -> None:
    """etcd tells the watch while the write is still under way: it waits for the answer, and the record is its own."""
    etcd = BusyEtcd()
    node = await registered(etcd)
    watch = asyncio.create_task(node.watch())
    await _turns()
    etcd.after_write = _turns
    await node.write()
    await _turns()
    assert node.refuses_prewrites == ""
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_go_offline_leaves_foreign_record_unchanged() -> None:
    etcd = BusyEtcd()
    node = await registered(etcd)
    await etcd.foreign()
    with pytest.raises(RegistryConflict):
        await node.go_offline()
    assert await etcd.status() == FOREIGN


async def test_go_offline_writes_offline_state_to_own_record() -> None:
    etcd = BusyEtcd()
    node = await registered(etcd)
    await node.go_offline()
    assert (await etcd.status()).state is State.OFFLINE
    assert node.refuses_prewrites == "offline"


async def _turns() -> None:
    """Everything that can go on without time passing has gone on."""
    for _ in range(50):
        await asyncio.sleep(0)
