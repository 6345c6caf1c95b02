"""A pump that stops waits until online drainers have applied what it holds, as long as READ_WAIT_S at most."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from binlog.cluster.registry import NodeStatus, Registry, State

from pump.cluster import membership
from pump.process import Pump
from tests.integration.pump.rpc import config, connected, until
from tests.integration.pump.services.conftest import CLUSTER
from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import commit, prewrite

LATE = 1 << 62


def drainer(max_commit_ts: int) -> NodeStatus:
    return NodeStatus("d1", "127.0.0.1:1", State.ONLINE, max_commit_ts=max_commit_ts, update_ts=LATE)


@pytest.mark.parametrize("reads", [True, False])
async def test_rule_1_a_pump_that_pauses_waits_for_online_drainers(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """It pauses when they have applied its last binlog, or when its time is up."""
    monkeypatch.setattr(membership, "READ_WAIT_S", 240.0 if reads else 0.5)
    looks = 0
    drainers_of = membership.drainers_of

    async def counted(registry: Registry) -> list[NodeStatus]:
        nonlocal looks
        found = await drainers_of(registry)
        looks += 1
        return found

    monkeypatch.setattr(membership, "drainers_of", counted)
    registry = Registry(etcd)
    pump = Pump(config(tmp_path, pd), etcd=etcd)
    await pump.start()
    async with connected(pump.addr, CLUSTER) as client:
        start_ts, commit_ts = pd.allocate(1)[0], pd.allocate(1)[0]
        revision = await registry.create("drainers", drainer(commit_ts - 1))
        (answer,) = await client.write_batches([[prewrite(start_ts), commit(start_ts, commit_ts)]])
        assert not answer.errors
        stopping = asyncio.create_task(pump.stop("pause"))
        if reads:

            async def looked_twice() -> bool:
                return looks >= 2

            await until(looked_twice)
            assert pump.node.state is State.PAUSING and not stopping.done()
            await registry.update("drainers", drainer(commit_ts), mod_revision=revision)
        await stopping
    found = await registry.get("pumps", "p1")
    assert found is not None
    assert (found.status.state, found.status.final, found.status.max_commit_ts) == (State.PAUSED, True, commit_ts)
    assert looks
