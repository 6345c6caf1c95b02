"""Stub pumps, a registry in memory, and clients on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from binlog.cluster.registry import Registry

from pumpclient.client import PumpsClient
from pumpclient.writer import Limits
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pumpclient.stub_pump import CLUSTER_ID, StubPump

FAST = Limits(
    write_timeout_s=60.0,  # a busy machine must not make anything fail that a test does not
    prewrite_retry_s=0.01,
    commit_retry_first_s=0.01,
    commit_retry_s=0.05,
    commit_budget_s=5.0,
    detect_first_s=0.05,
    detect_s=0.1,
    detect_soonest_s=0.02,
)


class Field:
    """Everything one test uses: an etcd in memory, the pumps in it, and clients."""

    def __init__(self) -> None:
        self.etcd = MemoryEtcd()
        self.registry = Registry(self.etcd)
        self.pumps: dict[str, StubPump] = {}
        self.clients: list[PumpsClient] = []

    async def add(self, node_id: str, **options: bool) -> StubPump:
        pump = await StubPump(node_id, **options).start()  # type: ignore[arg-type]
        self.pumps[node_id] = pump
        await self.announce(pump)
        return pump

    async def announce(self, pump: StubPump) -> None:
        """Write the pump's status as it is now."""
        record = await self.registry.get("pumps", pump.node_id)
        if record is None:
            await self.registry.create("pumps", pump.status)
        else:
            await self.registry.update("pumps", pump.status, mod_revision=record.mod_revision)

    async def client(self, strategy: str = "range", limits: Limits = FAST, **options: object) -> PumpsClient:
        client = PumpsClient(self.registry, cluster_id=CLUSTER_ID, strategy=strategy, limits=limits, **options)  # type: ignore[arg-type]
        await client.open()
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close(drain_s=0)
        for pump in self.pumps.values():
            await pump.stop()


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    made = Field()
    yield made
    await made.close()


async def until(condition: Callable[[], object], *, deadline_s: float = 60.0) -> None:
    """Let the loop run until `condition` is true."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  any condition of a test
            await asyncio.sleep(0.002)


Wait = Callable[[Callable[[], object]], Awaitable[None]]
