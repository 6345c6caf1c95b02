"""A pump that reads a long value log: its pages say how far it is, its calls wait, and it can be stopped meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from pump.log.value_log import READING
from pump.process import Pump
from tests.integration.pump.rpc import Client, config, connected, running, until
from tests.integration.pump.services.conftest import CLUSTER
from tests.support.memory_etcd import MemoryEtcd
from tests.support.servers import free_port
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import HeldReading, commit, prewrite

TRANSACTIONS = 200


class HeldPump(Pump):
    """Its recovery stands still until it is released."""

    async def _open_store(self, directory: Path) -> None:
        self.store.reading = self.held = HeldReading()
        await super()._open_store(directory)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def without_index(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    pd.run()
    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        for _ in range(TRANSACTIONS):
            start_ts = await pump.timestamps.get()
            (first,) = await client.write_batches([[prewrite(start_ts)]])
            (second,) = await client.write_batches([[commit(start_ts, await pump.timestamps.get())]])
            assert not first.errors and not second.errors
    shutil.rmtree(tmp_path / "p1" / "kv")


def held_pump(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD, port: int) -> HeldPump:
    settings = {"status-addr": f"127.0.0.1:{port}"}
    return HeldPump(config(tmp_path, pd, **settings), etcd=etcd)


async def begun(pump: HeldPump) -> None:
    async def reading() -> bool:
        return hasattr(pump, "held") and pump.held.reading.is_set()

    await until(reading)


async def served(client: Client) -> int:
    messages = await client.pull_range(0, (await client.watermark()).resolved_ts)
    return sum(len(message.payloads) for message in messages)


async def test_status_pages_of_starting_pump_show_progress(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD, http: aiohttp.ClientSession
) -> None:
    await without_index(tmp_path, etcd, pd)
    port = free_port()
    pump = held_pump(tmp_path, etcd, pd, port)
    starting = asyncio.create_task(pump.start())
    await begun(pump)
    base = f"http://127.0.0.1:{port}"

    async def asked(method: str, path: str) -> tuple[int, str]:
        async with http.request(method, base + path) as answer:
            return answer.status, await answer.text()

    async with http.get(f"{base}/status") as answer:
        document = await answer.json()
    own = document["pump"]
    assert (own["nodeId"], own["state"]) == ("p1", "starting")
    assert own["recovery"]["ofBytes"] > own["recovery"]["bytes"] > 0 and 0 < own["recovery"]["percent"] < 100
    assert own["recovery"]["records"] == 128
    assert document["CommitTS"] == 0 and "the pump is starting" in document["ErrMsg"]
    assert document["status"]["p1"]["state"] == "paused", "of other pumps it can tell"
    code, text = await asked("GET", "/ready")
    assert code == 503 and text.startswith("the pump is starting: ") and text.endswith(" %\n")
    code, text = await asked("GET", "/")
    assert code == 200 and "starting" in text and "reads its value log" in text
    for method, path in (("GET", "/debug/binlog/5"), ("POST", "/debug/gc/trigger")):
        code, text = await asked(method, path)
        assert code == 200 and "the pump is starting" in text, path
    assert "this pump's state is offline" in (await asked("PUT", "/state/p1/pause"))[1]
    assert (await asked("GET", "/metrics"))[0] == 200
    assert not starting.done()
    pump.held.go_on.set()
    await asyncio.wait_for(starting, 60)
    try:
        assert (await asked("GET", "/ready")) == (200, "ready\n")
        async with http.get(f"{base}/status") as answer:
            assert (await answer.json())["pump"]["state"] == "online"
        async with connected(pump.addr, CLUSTER) as client:
            assert await served(client) == TRANSACTIONS
        assert pump.held.now is not None and pump.held.now.step == READING
    finally:
        await pump.stop()


async def test_starting_pump_can_be_stopped_and_loses_nothing(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """As by a signal: it does not read to the end first, and everything is released."""
    await without_index(tmp_path, etcd, pd)
    port = free_port()
    pump = held_pump(tmp_path, etcd, pd, port)
    starting = asyncio.create_task(pump.start())
    await begun(pump)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, 60)
    settings = {"status-addr": f"127.0.0.1:{port}"}
    async with running(tmp_path, etcd, pd, **settings) as again, connected(again.addr, CLUSTER) as client:
        assert await served(client) == TRANSACTIONS
