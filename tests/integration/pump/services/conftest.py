"""A pump in this process, with etcd and PD beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.pump.rpc import Client, connected, running
from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD

CLUSTER = 7


@pytest.fixture
async def pd() -> AsyncIterator[StubPD]:
    stub = await StubPD.start(cluster_id=CLUSTER)
    stub.set(1)
    stub._last_ts = 1
    yield stub
    await stub.close()


@pytest.fixture
def etcd() -> MemoryEtcd:
    return MemoryEtcd()


@pytest.fixture
async def client(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> AsyncIterator[Client]:
    """A pump whose clock is held at 5: prewrites above it come before every T."""
    pd.set(5, hold=True)
    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as connection:
        yield connection
