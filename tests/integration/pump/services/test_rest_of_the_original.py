"""What the original's pump has besides its calls: a full disk, pages for debugging, the unix socket, a Pushgateway."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.envelope import scan
from binlog.errors import EtcdError
from binlog.pb import tikv_pb2
from grpc import aio

from pump import process
from pump.cluster import membership
from pump.tasks.gc import drainers_of
from tests.integration.pump.rpc import Client, config, connected, running, until
from tests.integration.pump.services.conftest import CLUSTER
from tests.support.memory_etcd import MemoryEtcd
from tests.support.servers import free_port
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import commit, prewrite
from tests.unit.pump.tikv import StubTiKV

Settings = dict[str, Any]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def text_of(http: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    async with http.get(url) as answer:
        return answer.status, await answer.text()


async def refusal(client: Client, payload: bytes) -> str:
    with pytest.raises(aio.AioRpcError) as caught:
        await client.write(payload)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details() or ""


async def test_full_disk_refuses_writes_until_space_returns(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD, monkeypatch: pytest.MonkeyPatch, http: aiohttp.ClientSession
) -> None:
    """P-RPC-05, P-RPC-06, P-ST-13: at the limit everything is refused but fakes, the probe and commits too; what is
    stored is served, and a drainer of the original is moved on; with room again writes are taken without a restart."""
    monkeypatch.setattr(process, "SPACE_INTERVAL_S", 0.05)
    settings: Settings = {"storage": {"stop-write-at-available-space": "10 gib"}, "gen-binlog-interval": 1}
    pd.run()
    async with running(tmp_path, etcd, pd, "p1", **settings) as pump:
        available = [11 << 30]
        monkeypatch.setattr(
            pump.store.space,
            "_statvfs",
            lambda _: SimpleNamespace(f_bavail=available[0] >> 12, f_frsize=4096, f_blocks=100 << 18),
        )

        async def seen() -> bool:
            _, text = await text_of(http, f"{base}/metrics")
            (shown,) = re.findall(r'storage_size_bytes{type="available"} (\S+)', text)
            return float(shown) == available[0]

        base = f"http://{pump.status_addr}"
        async with connected(pump.addr, CLUSTER) as client:
            await until(seen)
            await client.write(b"")
            start_ts, commit_ts = await pump.timestamps.get(), await pump.timestamps.get()
            await client.write(prewrite(start_ts))
            available[0] = 10 << 30
            await until(seen)
            text = f"no available space, available: {10 << 30}, StopWriteAtAvailableSpace: {10 << 30}"
            for payload in (b"", prewrite(commit_ts + 1), commit(start_ts, commit_ts)):
                assert text in await refusal(client, payload)
            assert "No available space: writes are refused." in (await text_of(http, f"{base}/"))[1]
            available[0] += 4096
            await until(seen)
            await client.write(commit(start_ts, commit_ts))
            available[0] = 0
            await until(seen)
            full_ts = await pump.timestamps.get()
            served: list[Any] = []
            async with asyncio.timeout(60):
                async for entity in client.pull_binlogs(start_ts):
                    served.append(entity)
                    if entity.meta.commitTs > full_ts:
                        break
            assert commit_ts in [entity.meta.commitTs for entity in served]
            fake = scan(served[-1].payload)
            assert fake.start_ts == fake.commit_ts > full_ts
    assert pump.node.state is State.PAUSED


async def test_debug_binlog_page_shows_binlog_and_tikv_mvcc(
    tmp_path: Path, etcd: MemoryEtcd, http: aiohttp.ClientSession
) -> None:
    """GET /debug/binlog/{ts}: answers are texts with status 200, errors too, as the original's."""
    tikv = await StubTiKV.start()
    tikv.writes = [(tikv_pb2.Op.Value("PUT"), 10, 20)]
    try:
        async with running(tmp_path, etcd, tikv) as pump, connected(pump.addr, 1) as client:

            async def shown(ts: object) -> str:
                status, text = await text_of(http, f"http://{pump.addr}/debug/binlog/{ts}")
                assert status == 200
                return text

            start_ts, commit_ts = await pump.timestamps.get(), await pump.timestamps.get()
            await client.write_batches([[prewrite(start_ts), commit(start_ts, commit_ts, key=b"")]])
            binlog, value, mvcc = (await shown(start_ts)).split("\n\n ")
            assert f"start_ts: {start_ts}" in binlog
            assert value.startswith("PrewriteValue: \nschema_version: 5")
            assert mvcc.startswith("GetMvccByEncodedKey: \n")
            assert "commit_ts: 20" in mvcc
            assert tikv.keys
            assert "GetMvccByEncodedKey" not in await shown(commit_ts)  # it has no key
            assert await shown("abc") == "invalid parameter ts: abc"
            assert await shown(5) == "no binlog is stored under 5"
            tikv.leader = False
            assert "\n\n GetMvccByEncodedKey failed: PD at " in await shown(start_ts)
            path = pump.store.log.file(0).path
            with path.open("r+b") as file:
                file.seek(20)
                file.write(b"\xff\xff")
            assert "damaged record in" in await shown(start_ts)
    finally:
        await tikv.close()


@pytest.mark.parametrize("form", ["unix://{}", "unix:{}", "{}"])
async def test_pump_serves_calls_and_pages_over_unix_socket(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD, form: str
) -> None:
    """What a killed pump left there is taken over; a stop removes it."""
    path = tmp_path / "pump.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with running(tmp_path, etcd, pd, socket=form.format(path)):
        async with connected(f"unix:{path}", CLUSTER) as client:
            await client.write(prewrite(pd.allocate(1)[0]))
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session:
            assert '"state":"online"' in (await text_of(session, "http://pump/status"))[1]
    assert not path.exists()


async def test_pump_pushes_metrics_to_gateway(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """K-10."""
    pushed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def take_it(request: web.Request) -> web.Response:
        await pushed.put((f"{request.method} {request.path}", await request.text()))
        return web.Response()

    app, port = web.Application(), free_port()
    app.router.add_route("*", "/{rest:.*}", take_it)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        settings: Settings = {"metrics-addr": f"127.0.0.1:{port}", "metrics-interval": 1}
        async with running(tmp_path, etcd, pd, **settings), asyncio.timeout(60):
            place, text = await pushed.get()
        assert place == "POST /metrics/job/binlog/instance/p1"
        assert "binlog_pump_storage_max_commit_ts" in text
        assert "binlog_pump_loss_binlog_count 0.0" in text or "\nbinlog_pump_loss_binlog_count " in text
    finally:
        await runner.cleanup()


async def test_closing_pump_retries_while_etcd_is_down(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-LC-09: each step of leaving for good is tried again. Giving up leaves a record in `closing`, for which drainers
    wait until somebody starts the pump again."""
    monkeypatch.setattr(membership, "PASSED_POLL_S", 0.01)
    registry = Registry(etcd)
    await registry.create("drainers", NodeStatus("d1", "127.0.0.1:1", State.PAUSED, max_commit_ts=1 << 62))
    pump = process.Pump(config(tmp_path, pd), etcd=etcd)
    await pump.start()
    failures = iter(range(3))

    async def failing(asked: Registry) -> list[NodeStatus]:
        if next(failures, None) is not None:
            raise EtcdError("no connection to etcd")
        return await drainers_of(asked)

    monkeypatch.setattr(membership, "drainers_of", failing)
    await asyncio.wait_for(pump.stop("close"), 60)
    record = await registry.get("pumps", "p1")
    assert record is not None
    assert record.status.state is State.OFFLINE
    assert next(failures, None) is None
