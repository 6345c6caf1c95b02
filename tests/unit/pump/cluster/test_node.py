"""The registry record: registration, correctness rule 2, identity, notification of drainers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from binlog.cluster.registry import SOURCE_LABEL, Event, NodeStatus, Registry, State, key_of
from binlog.cluster.tso import compose
from binlog.errors import BinlogError, ConfigError, EtcdError, RegistryConflict
from binlog.pb import cistern_pb2
from grpc import aio

from pump.cluster.membership import notify_drainers
from pump.cluster.node import DirectoryLock, Node, node_id
from pump.errors import NotifyFailed
from tests.support.grpc_service import add_service
from tests.support.lossy_etcd import LossyEtcd
from tests.support.memory_etcd import MemoryEtcd

NOW = compose(1_700_000_000_000)


async def registered(etcd: MemoryEtcd, name: str = "p1") -> Node:
    node = Node(Registry(etcd), name, resolved_ts=lambda: 42)
    await node.register("127.0.0.1:8250", NOW)
    return node


async def state_of(etcd: MemoryEtcd, name: str = "p1") -> NodeStatus:
    record = await Registry(etcd).get("pumps", name)
    assert record is not None
    return record.status


async def test_node_registers_pauses_and_registers_again_with_previous_state() -> None:
    etcd = MemoryEtcd()
    node = Node(Registry(etcd), "p1", resolved_ts=lambda: 42)
    assert node.refuses_prewrites == "offline", "a pump registers before it accepts a prewrite"
    await node.register("127.0.0.1:8250", NOW)
    assert node.refuses_prewrites == ""
    status = await state_of(etcd)
    assert (status.state, status.max_commit_ts, status.update_ts) == (State.ONLINE, 42, NOW)
    await node.move(Event.PAUSE)
    assert node.refuses_prewrites == "pausing"
    await node.move(Event.DRAINED)
    left = await state_of(etcd)
    assert (left.state, left.label, left.max_commit_ts) == (State.PAUSED, None, 42), "nothing says that it is final"
    again = await registered(etcd)
    assert again.previous is State.PAUSED


async def test_registry_record_holds_current_score_and_labels() -> None:
    """Each heartbeat measures anew; labels of the operator stand beside those of the pump."""
    etcd = MemoryEtcd()
    node = Node(Registry(etcd), "p1", resolved_ts=lambda: 42, labels={"zone": "a"})
    node.score = 700
    await node.register("127.0.0.1:8250", NOW, status_addr="127.0.0.1:9250")
    status = await state_of(etcd)
    assert (status.score, status.label) == (700, {"zone": "a", "status": "127.0.0.1:9250"})
    scores = iter(range(1, 700))

    async def measure() -> int:
        return next(scores)

    beating = asyncio.create_task(node.heartbeat(0.01, measure))
    async with asyncio.timeout(60):
        while not 3 <= (await state_of(etcd)).score < 700:  # noqa: ASYNC110  written by another task
            await asyncio.sleep(0.01)
    beating.cancel()


async def test_rule_1_final_label_lasts_while_paused_and_is_gone_after_registration() -> None:
    """The label and its ts survive heartbeats; the next life's registration has neither."""
    etcd = MemoryEtcd()
    node = await registered(etcd)
    await node.move(Event.PAUSE)
    assert not (await state_of(etcd)).final
    await node.move(Event.DRAINED, final_ts=17)
    await node.write()
    left = await state_of(etcd)
    assert (left.state, left.final, left.max_commit_ts) == (State.PAUSED, True, 17)
    await registered(etcd)
    back = await state_of(etcd)
    assert (back.state, back.final, back.label, back.max_commit_ts) == (State.ONLINE, False, None, 42)


async def test_registry_record_has_keys_and_label_form_of_original() -> None:
    """R-02: its keys in its order, labels in the shape its programs decode."""
    etcd = MemoryEtcd()
    node = Node(Registry(etcd), "p1", resolved_ts=lambda: 42)
    await node.register("127.0.0.1:8250", NOW, status_addr="127.0.0.1:9250")
    await node.move(Event.PAUSE)
    await node.move(Event.DRAINED, final_ts=17)
    kv = await etcd.get(key_of("pumps", "p1"))
    assert kv is not None
    update_ts = (await state_of(etcd)).update_ts
    assert kv.value == (
        b'{"nodeId":"p1","host":"127.0.0.1:8250","state":"paused","isAlive":false,"score":0,'
        b'"label":{"labels":{"status":"127.0.0.1:9250","final":"true"}},"maxCommitTS":17,"updateTS":%d}' % update_ts
    )


@pytest.mark.parametrize("how", ["forced offline", "a second live instance", "deleted"])
async def test_rule_2_foreign_write_to_record_stops_prewrites(how: str) -> None:
    """Nobody overwrites the other in turns: who finds a revision not its own stops, and leaves the record alone."""
    etcd = MemoryEtcd()
    node = await registered(etcd)
    if how == "forced offline":
        record = await Registry(etcd).get("pumps", "p1")
        assert record is not None
        forced = NodeStatus("p1", "127.0.0.1:8250", State.OFFLINE)
        await Registry(etcd).update("pumps", forced, mod_revision=record.mod_revision)
    elif how == "deleted":
        await etcd.delete(key_of("pumps", "p1"))
    else:
        await registered(etcd)
    with pytest.raises(RegistryConflict):
        await node.write()
    assert node.refuses_prewrites


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_rule_2_own_record_writes_are_recognised_after_lost_answers(lost: int) -> None:
    """etcd took one of them and failed before it said so: the next must not mistake it for a second instance."""
    etcd = LossyEtcd()
    node = await registered(etcd)
    etcd.results = ["taken"] * lost
    for _ in range(lost):
        with pytest.raises(EtcdError):
            await node.write()
    await node.write()
    assert node.refuses_prewrites == ""
    etcd.results = ["taken"]
    with pytest.raises(EtcdError):
        await node.move(Event.PAUSE)
    await node.move(Event.DRAINED, final_ts=17)
    assert (await state_of(etcd)).final


# Identity


def test_node_id_of_node_file_wins_and_generated_id_is_stored(tmp_path: Path) -> None:
    """P-LC-01: what `.node` holds wins, a configured id is not kept, a made one is."""
    assert node_id(tmp_path, "mine", "h:8250") == "mine"
    assert not (tmp_path / ".node").exists()
    made = node_id(tmp_path, "", "h:8250")
    assert made.endswith(":8250")
    assert (tmp_path / ".node").stat().st_mode & 0o777 == 0o600
    assert node_id(tmp_path, "mine", "h:9999") == made


def test_node_id_fails_if_node_file_is_unreadable_or_id_has_slash(tmp_path: Path) -> None:
    (tmp_path / ".node").mkdir()
    with pytest.raises(ConfigError, match=r"\.node"):
        node_id(tmp_path, "", "h:8250")
    assert node_id(tmp_path, "mine", "h:8250") == "mine"
    with pytest.raises(ConfigError, match="slash"):
        node_id(tmp_path, "a/b", "h:8250")


def test_directory_lock_refuses_second_user_until_release(tmp_path: Path) -> None:
    """0700, and locked while the pump lives (P-LC-02)."""
    lock = DirectoryLock(tmp_path / "d")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    with pytest.raises(BinlogError, match="already locked"):
        DirectoryLock(tmp_path / "d")
    lock.release()
    DirectoryLock(tmp_path / "d").release()


# Notification


class Drainer:
    def __init__(self, *, refuse: bool = False) -> None:
        self.refuse = refuse
        self.notified = 0

    async def Notify(self, request: Any, context: Any) -> Any:
        self.notified += 1
        if self.refuse:
            await context.abort(grpc.StatusCode.INTERNAL, "no")
        return cistern_pb2.NotifyResp()


@contextlib.asynccontextmanager
async def drainer(etcd: MemoryEtcd, name: str, servicer: Drainer | None, *, age_ms: int = 0) -> AsyncIterator[None]:
    server = aio.server()
    host = "127.0.0.1:1"
    if servicer is not None:
        add_service(server, cistern_pb2.DESCRIPTOR, "Cistern", servicer)
        host = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    update_ts = NOW - (age_ms << 18)
    await Registry(etcd).create("drainers", NodeStatus(name, host, State.ONLINE, update_ts=update_ts))
    try:
        yield
    finally:
        await server.stop(None)


async def test_notify_drainers_reaches_living_ones_and_ignores_stale_records() -> None:
    """All must answer (P-LC-05); a dead one with a stale record is only warned about (L-20)."""
    etcd, living = MemoryEtcd(), Drainer()
    label = {SOURCE_LABEL: "kafka"}  # it may stand where no pump reaches it
    reader = NodeStatus("reader", "127.0.0.1:1", State.ONLINE, label=label, update_ts=NOW)
    await Registry(etcd).create("drainers", reader)
    async with drainer(etcd, "d1", living), drainer(etcd, "stale", None, age_ms=31_000):
        await notify_drainers(Registry(etcd), None, now_ts=NOW, pause_s=0.01)
    assert living.notified == 1


async def test_notify_drainers_fails_after_retries_if_living_drainer_refuses() -> None:
    etcd, servicer = MemoryEtcd(), Drainer(refuse=True)
    async with drainer(etcd, "d1", servicer):
        with pytest.raises(NotifyFailed, match="fail to notify all living drainer: d1"):
            await notify_drainers(Registry(etcd), None, now_ts=NOW, pause_s=0.01)
    assert servicer.notified == 3
