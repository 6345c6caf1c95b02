"""The drainer's record in the registry, from which pumps tell what they may remove (rule 20)."""

from __future__ import annotations

import asyncio

import pytest
from binlog.cluster.registry import Event, NodeStatus, Registry, State, key_of
from binlog.errors import BinlogError

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.service.registration import Displaced, DrainerNode
from tests.support.local_batch import LocalBatch
from tests.support.lossy_etcd import LossyEtcd
from tests.support.memory_etcd import MemoryEtcd
from tests.support.memory_sink import Store
from tests.unit.drainer.test_pipeline import BEGIN, COMMITS, END, feed, plan, start


async def record(registry: Registry) -> NodeStatus:
    found = await registry.get("drainers", "d")
    assert found is not None
    return found.status


async def test_drainer_record_follows_position_of_destination() -> None:
    """Rule 20: a batch that was read and could not be applied is still needed by the next start."""
    registry, run = Registry(MemoryEtcd()), start(Store())
    node = DrainerNode(registry, node_id="d", host="h:1", position=lambda: run.pipeline.position_ts, started_ts=END)
    await node.register()
    assert await record(registry) == NodeStatus("d", "h:1", State.ONLINE, max_commit_ts=BEGIN, update_ts=END)
    middle = COMMITS[len(COMMITS) // 2]
    run.pipeline.run(plan(BEGIN, middle), feed(BEGIN, middle))
    broken = LocalBatch([[b"no binlog"]], middle, END)
    with pytest.raises(BinlogError):
        run.pipeline.run(PlannedBatch(middle, END, Mode.DRIVER, (), 1), broken)
    await node.move(Event.PAUSE)
    assert (await record(registry)).state is State.PAUSING
    await node.move(Event.DRAINED)
    left = await record(registry)
    assert (left.state, left.max_commit_ts) == (State.PAUSED, middle)
    assert run.store.commit_ts == middle


async def test_drainer_record_after_restart_is_at_position() -> None:
    """Rule 20: the destination may be older than the record (restored from a backup); then the record goes back."""
    registry = Registry(MemoryEtcd())
    await registry.create("drainers", NodeStatus("d", "old:1", State.ONLINE, max_commit_ts=900))
    node = DrainerNode(registry, node_id="d", host="h:1", position=lambda: 500, started_ts=1)
    await node.register()
    assert (await record(registry)).max_commit_ts == 500


async def test_closed_drainer_is_registered_as_offline() -> None:
    """Pumps keep nothing for it any more. Where its status page is stands in a label (R-02 allows them)."""
    registry = Registry(MemoryEtcd())
    node = DrainerNode(registry, node_id="d", host="h:1", position=lambda: 5, started_ts=1, status_addr="h:9249")
    await node.register()
    assert (await record(registry)).label == {"status": "h:9249"}
    await node.move(Event.CLOSE)
    assert (await record(registry)).state is State.CLOSING
    await node.move(Event.DRAINED)
    assert (await record(registry)).state is State.OFFLINE


async def test_drainer_that_reads_topics_says_so_in_its_record() -> None:
    registry = Registry(MemoryEtcd())
    node = DrainerNode(registry, node_id="d", host="h:1", position=lambda: 5, started_ts=1, reads_topics=True)
    await node.register()
    assert (await record(registry)).reads_topics


async def test_drainer_record_write_with_lost_answer_is_recognised_as_its_own() -> None:
    """One change of etcd's leader while a drainer stops must not look like a second process with its id."""
    etcd = LossyEtcd()
    node = DrainerNode(Registry(etcd), node_id="d", host="h:1", position=lambda: 5, started_ts=1)
    await node.register()
    etcd.results = ["taken", "taken", "dropped", "taken"]
    beating = asyncio.create_task(node.heartbeats(0.01))
    async with asyncio.timeout(60):
        while len(etcd.results) > 2:  # noqa: ASYNC110  the results have no event
            await asyncio.sleep(0.005)
        await node.move(Event.PAUSE)
        while etcd.results or (await record(Registry(etcd))).state is not State.PAUSING:
            await asyncio.sleep(0.005)
            assert not beating.done(), beating
        await etcd.put(key_of("drainers", "d"), NodeStatus("d", "h:1", State.PAUSING, max_commit_ts=5).to_json())
        with pytest.raises(Displaced):  # the same host and state, and still not a write of this process
            await beating
