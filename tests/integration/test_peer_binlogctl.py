"""The original's binlogctl on records of ours, labels included. A desk test: skipped without PEER_BIN, in CI too."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from binlog.etcd import connect_etcd
from binlog.node import NodeStatus, State
from binlog.registry import Registry

from tests.peer.cluster import peer_bin
from tests.support import Etcd

BINARIES = peer_bin()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BINARIES is None, reason="PEER_BIN does not name a folder of the peer's binaries"),
]


def binlogctl(etcd: Etcd, *words: str) -> str:
    argv = [str((BINARIES or Path()) / "binlogctl"), "-pd-urls", etcd.endpoint, *words]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout + ran.stderr


def test_labels_do_not_disturb_it_and_it_keeps_them(etcd: Etcd) -> None:
    """R-02: it lists a pump that is paused, final, and forces it offline; what the pump said of itself stays."""

    async def with_registry(work: Callable[[Registry], Awaitable[NodeStatus | None]]) -> NodeStatus | None:
        store = connect_etcd([etcd.endpoint])
        try:
            return await work(Registry(store))
        finally:
            await store.close()

    async def put(registry: Registry) -> None:
        labels = {"status": "127.0.0.1:9250", "final": "true"}
        status = NodeStatus("p1", "127.0.0.1:8250", State.PAUSED, label=labels, max_commit_ts=42, update_ts=1 << 58)
        await registry.create("pumps", status)

    async def read(registry: Registry) -> NodeStatus | None:
        found = await registry.get("pumps", "p1")
        return found.status if found else None

    asyncio.run(with_registry(put))
    assert "NodeID: p1, Addr: 127.0.0.1:8250, State: paused, MaxCommitTS: 42" in binlogctl(etcd, "-cmd", "pumps")
    binlogctl(etcd, "-cmd", "update-pump", "-node-id", "p1", "-state", "offline")
    left = asyncio.run(with_registry(read))
    assert left is not None
    assert (left.state, left.max_commit_ts) == (State.OFFLINE, 42)
    assert left.label == {"status": "127.0.0.1:9250", "final": "true"}
