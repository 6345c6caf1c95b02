"""How a pump comes, goes, and is written of in etcd: in this process, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.timestamp import BOUND_KEY
from binlog.errors import ConfigError, TimestampUnavailable
from grpc import aio

from pump.errors import NotifyFailed
from pump.process import Pump
from tests.integration.pump.rpc import Client, codes, config, connected, running, until
from tests.integration.pump.services.conftest import CLUSTER
from tests.support.lossy_etcd import LossyEtcd
from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import commit, prewrite, rollback


async def test_rule_1_a_pump_with_pending_prewrites_stays_pausing(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """A acks P(start 50) and pauses; it counts until C(60) has come. Then it is `paused`, and 60 is its last word."""
    pd.set(40, hold=True)

    async def record() -> NodeStatus:
        found = await Registry(etcd).get("pumps", "p1")
        assert found is not None
        return found.status

    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        await client.write(prewrite(50))
        pd.set(1000, hold=True)
        assert (await client.watermark()).resolved_ts == 49
    assert (await record()).state is State.PAUSING
    assert (await record()).max_commit_ts == 49 and not (await record()).final
    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        assert (await client.watermark()).resolved_ts == 49
        await client.write(commit(50, 60))
        assert (await client.watermark()).resolved_ts == 1000
    left = await record()
    assert (left.state, left.final, left.max_commit_ts) == (State.PAUSED, True, 60)


async def test_rule_1_a_stop_waits_for_commits(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """While it is pausing it refuses prewrites and takes commits."""
    pd.set(40, hold=True)
    async with connected_pump(tmp_path, etcd, pd, **{"drain-wait": 120}) as (pump, client):
        await client.write(prewrite(50))
        stopping = asyncio.create_task(pump.stop())

        async def pausing() -> bool:
            return pump.node.state is State.PAUSING

        await until(pausing)
        with pytest.raises(aio.AioRpcError) as error:
            await client.write(prewrite(52))
        assert codes(error) == (grpc.StatusCode.UNKNOWN, "no online: pausing")
        assert not stopping.done()
        await client.write(commit(50, 60))
        await stopping
    found = await Registry(etcd).get("pumps", "p1")
    assert found is not None
    assert found.status.state is State.PAUSED


@contextlib.asynccontextmanager
async def connected_pump(
    directory: Path, etcd: MemoryEtcd, pd: StubPD, **settings: Any
) -> AsyncIterator[tuple[Any, Client]]:
    """A pump that the test itself stops."""
    from pump.process import Pump

    pump = Pump(config(directory, pd, **settings), etcd=etcd)
    await pump.start()
    async with connected(pump.addr, CLUSTER) as client:
        yield pump, client


async def test_close_waits_for_every_drainer_in_use(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """P-LC-09: `closing`, then `offline` once what is here has been passed."""
    registry = Registry(etcd)
    # It waits for what is still being written: else it would stay `closing`, and go.
    async with connected_pump(tmp_path, etcd, pd, **{"drain-wait": 60}) as (pump, client):
        start_ts, commit_ts = pd.allocate(1)[0], pd.allocate(1)[0]
        revision = await registry.create("drainers", NodeStatus("d1", "127.0.0.1:1", State.PAUSED, max_commit_ts=1))
        (answer,) = await client.write_batches([[prewrite(start_ts), commit(start_ts, commit_ts)]])
        assert not answer.errors
        stopping = asyncio.create_task(pump.stop("close"))

        async def closing() -> bool:
            return pump.node.state is State.CLOSING

        async def resolved() -> bool:
            return (await client.watermark()).resolved_ts >= commit_ts

        await until(closing)
        await until(resolved)
        assert (await client.pull_range(0, (await client.watermark()).resolved_ts))[0].last_ts == commit_ts
        assert not stopping.done()
        await registry.update(
            "drainers", NodeStatus("d1", "127.0.0.1:1", State.PAUSED, max_commit_ts=1 << 62), mod_revision=revision
        )
        await stopping
    found = await registry.get("pumps", "p1")
    assert found is not None
    assert found.status.state is State.OFFLINE


async def test_rule_2_pump_forced_offline_refuses_prewrites_and_keeps_record(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD
) -> None:
    """Prewrites stop at once; commits and pulls go on; the operator's record stays."""
    pd.set(5, hold=True)
    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        await client.write(prewrite(10))
        registry = Registry(etcd)
        found = await registry.get("pumps", "p1")
        assert found is not None
        await registry.update("pumps", NodeStatus("p1", "x:1", State.OFFLINE), mod_revision=found.mod_revision)

        async def noticed() -> bool:
            return bool(pump.node.refuses_prewrites)

        await until(noticed)
        with pytest.raises(aio.AioRpcError, match="no online: offline"):
            await client.write(prewrite(12))
        await client.write(commit(10, 20))
        pd.set(100, hold=True)
        assert len(await client.pull_range(0, (await client.watermark()).resolved_ts)) == 1
    found = await registry.get("pumps", "p1")
    assert found is not None
    assert found.status.host == "x:1"


async def test_prewrite_committed_on_another_pump_is_settled_as_rollback(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD
) -> None:
    """The other pump serves the commit, so this copy ends as rolled back; a rollback there says nothing."""
    pd.set(5, hold=True)
    async with (
        running(tmp_path, etcd, pd, "p1", **{"pending-query-after": 1}) as first,
        running(tmp_path, etcd, pd, "p2", **{"pending-warn": 600}) as second,
        connected(first.addr, CLUSTER) as one,
        connected(second.addr, CLUSTER) as two,
    ):
        await one.write_batches([[prewrite(10), prewrite(12)]])
        await two.write_batches([[prewrite(10), commit(10, 20), rollback(12)]])

        async def one_left() -> bool:
            return (await one.inspect()).pending_count == 1

        await until(one_left)
        seen = await one.inspect()
        assert [entry.start_ts for entry in seen.pending] == [12]
        assert await one.outcome(10) == [0]
        await one.settle(12)


async def test_pump_start_fails_if_living_drainer_cannot_be_notified(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD
) -> None:
    """P-LC-05: the registration is taken back, and the start fails by name."""
    now_ts = pd.allocate(1)[0]
    await Registry(etcd).create("drainers", NodeStatus("d1", "127.0.0.1:1", State.ONLINE, update_ts=now_ts))
    with pytest.raises(NotifyFailed, match="fail to notify all living drainer"):
        async with running(tmp_path, etcd, pd):
            pass
    found = await Registry(etcd).get("pumps", "p1")
    assert found is not None
    assert found.status.state is State.OFFLINE


async def test_pump_accepts_prewrites_after_lost_etcd_answers(tmp_path: Path, pd: StubPD) -> None:
    """Rule 2: its leader changes while the pump writes its record twice."""
    etcd = LossyEtcd()
    async with (
        running(tmp_path, etcd, pd, **{"heartbeat-interval": 1}) as pump,
        connected(pump.addr, CLUSTER) as client,
    ):
        etcd.results = ["taken", "taken"]
        record = await pump.registry.get("pumps", "p1")
        assert record is not None

        async def written_again() -> bool:
            found = await pump.registry.get("pumps", "p1")
            assert found is not None
            return not etcd.results and found.mod_revision > record.mod_revision + 1

        await until(written_again)
        await client.write(prewrite(10))


async def test_a_pump_does_not_start_from_a_bound_far_ahead(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """Without PD: the error says which key and which command."""
    await etcd.put(BOUND_KEY, b"%d" % (1 << 44))
    pump = Pump(config(tmp_path, pd, **{"tso-source": "own"}), etcd=etcd)
    with pytest.raises(
        TimestampUnavailable, match=rf"{BOUND_KEY} says {1 << 44} .*`binlogctl reset-tso-bound -dry-run`"
    ):
        await pump.start()
    assert not (await Registry(etcd).list("pumps")).nodes
    await etcd.put(BOUND_KEY, b"1")
    async with running(tmp_path, etcd, pd, **{"tso-source": "own"}) as pump:
        assert pump.store.resolved_ts


async def test_a_pump_whose_node_file_was_changed_does_not_start(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """Drainers would wait for the record it left behind. Said on purpose, it takes the new name."""
    async with running(tmp_path, etcd, pd):
        pass
    (tmp_path / "p1" / ".node").write_text("p2")
    pump = Pump(config(tmp_path, pd, **{"node-id": ""}), etcd=etcd)
    with pytest.raises(ConfigError, match=r"\.node makes this pump 'p2', but its data-dir was written by pump 'p1'"):
        await pump.start()
    assert await Registry(etcd).get("pumps", "p2") is None
    async with running(tmp_path, etcd, pd, **{"node-id": "p2"}) as renamed:
        assert renamed.node.node_id == "p2"
    async with running(tmp_path, etcd, pd, **{"node-id": ""}) as renamed:
        assert renamed.node.node_id == "p2"
