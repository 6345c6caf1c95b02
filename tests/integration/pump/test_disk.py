"""A pump process on a disk that fails: a sync that does not work, and pages of the index that a power cut took."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry, State
from grpc import StatusCode, aio

from pumpclient import writer
from pumpclient.client import PumpsClient
from pumpclient.pool import ERRORS_MAX
from pumpclient.writer import Limits
from tests.integration.pump.rpc import Client, connected, until
from tests.integration.pump.test_process import cluster_of, pump, served, timestamps
from tests.support.counted import counting
from tests.support.servers import Etcd, Server, free_port, python_module
from tests.unit.pump.build import commit, prewrite

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PAGE_BYTES = 4096


def pump_on_failing_disk(directory: Path, etcd: Etcd, name: str, port: int, status_port: int) -> Server:
    args = ["-addr", f"127.0.0.1:{port}", "-pd-urls", etcd.endpoint, "-tso-source", "own", "-node-id", name]
    args += ["-data-dir", str(directory / name), "-status-addr", f"127.0.0.1:{status_port}", "-drain-wait", "1"]
    module = "tests.integration.pump.failing_disk"
    return python_module(module, str(directory / "fail"), *args, output=directory / f"{name}.log")


def page_of(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


async def state_of(registry: Registry, name: str) -> State | None:
    record = await registry.get("pumps", name)
    return record.status.state if record is not None else None


async def probe(client: Client) -> str:
    """What an old client's probe is told; "" where it succeeds."""
    try:
        await client.write(b"")
    except aio.AioRpcError as error:
        assert error.code() is StatusCode.UNKNOWN, "what upstream's clients know"
        return error.details() or ""
    return ""


async def test_pump_with_failed_sync_leaves_online_and_recovers_after_restart(tmp_path: Path, etcd: Etcd) -> None:
    """Repetitions fail with their original; the pump leaves `online` and says why wherever one looks; drainers read on;
    after a restart everything that was acknowledged is there."""
    port, status_port, switch = free_port(), free_port(), tmp_path / "fail"
    server = pump_on_failing_disk(tmp_path, etcd, "p1", port, status_port).start()
    store = connect_etcd([etcd.endpoint])
    registry, source = Registry(store), await timestamps(etcd)
    try:
        await asyncio.to_thread(server.wait_for_output, "pump is serving")
        async with connected(f"127.0.0.1:{port}", await cluster_of(etcd)) as client:
            first, first_end, second, third = [await source.get() for _ in range(4)]
            for payload in (prewrite(first), commit(first, first_end), prewrite(second)):
                await client.write(payload)
            assert await probe(client) == ""

            switch.touch()
            second_end = await source.get()
            end, new = commit(second, second_end), prewrite(third)
            (answer,) = await client.write_batches([[new, new, end, end, prewrite(second)]])
            assert [each.index for each in answer.errors] == [0, 1, 2, 3, 4]
            assert {each.code for each in answer.errors} == {StatusCode.INTERNAL.value[0]}

            async def pausing() -> bool:
                return await state_of(registry, "p1") is State.PAUSING

            await until(pausing)
            assert "no online: value log" in (why := await probe(client)) and "Input/output error" in why
            own = json.loads(await asyncio.to_thread(page_of, status_port, "/status"))["pump"]
            assert (own["state"], "Input/output error" in own["logBroken"]) == ("pausing", True)
            assert "binlog_pump_log_broken 1.0" in await asyncio.to_thread(page_of, status_port, "/metrics")
            assert "Input/output error" in await asyncio.to_thread(page_of, status_port, "/")

            mark = await client.watermark(0)
            assert (mark.state, mark.resolved_ts) == ("pausing", second - 1), "what may be stored holds it back"
            assert await served(client, 0) == [(first, first_end)]
            assert await client.outcome(second) == [0]
        assert await asyncio.to_thread(server.stop) == 0
        assert await state_of(registry, "p1") is State.PAUSING, "it counts until it has read its log again"

        switch.unlink()
        server = pump_on_failing_disk(tmp_path, etcd, "p1", port, status_port)
        server.output = tmp_path / "again.log"
        await asyncio.to_thread(server.start().wait_for_output, "pump is serving")
        assert await state_of(registry, "p1") is State.ONLINE
        async with connected(f"127.0.0.1:{port}", await cluster_of(etcd)) as client:
            for payload in (end, new, commit(third, await source.get())):
                await client.write(payload)
            found = await served(client, 0)
            assert [start_ts for start_ts, _ in found] == [first, second, third]
    finally:
        server.kill()
        await source.close()
        await store.close()


async def test_writers_leave_a_pump_whose_log_is_broken(tmp_path: Path, etcd: Etcd) -> None:
    """The client goes to the other one at once, and does not come back by its probe."""
    port, switch = free_port(), tmp_path / "fail"
    bad = pump_on_failing_disk(tmp_path, etcd, "p1", port, free_port()).start()
    good = pump(tmp_path, etcd, "p2", free_port()).start()
    source = await timestamps(etcd)
    try:
        for server in (bad, good):
            await asyncio.to_thread(server.wait_for_output, "pump is serving")
        patient = Limits(patience_s=30.0, write_timeout_s=60.0)  # a disk that is slow is not one that fails
        async with await PumpsClient.connect(etcd.endpoint, tso_source="own", limits=patient) as client:
            failed = counting(writer.TRIES_FAILED)
            switch.touch()

            async def write() -> str:
                start_ts = await source.get()
                name = await client.write_prewrite(start_ts, b"k", b"\x08\x05")
                await client.commit(start_ts, await source.get())
                return name

            for _ in range(3 * ERRORS_MAX):
                assert await write() == "p2"

            async def alone() -> bool:
                return client.available_pumps == ("p2",)

            await until(alone)
            assert not (await client._writer.probe("p1")).acked
            assert client._pool.online() == ("p2",), "the registry says so, not only experience"
            assert failed() < ERRORS_MAX
    finally:
        bad.kill()
        good.kill()
        await source.close()


async def test_rule_25_all_binlogs_are_served_after_loss_of_index_page(tmp_path: Path, etcd: Etcd) -> None:
    """A killed pump's directory without one page of LevelDB's log: everything in the value log is served."""
    port = free_port()
    server = pump(tmp_path, etcd, "p1", port, "-fake-binlog-interval", "0").start()
    source = await timestamps(etcd)
    wanted: list[tuple[int, int]] = []
    try:
        await asyncio.to_thread(server.wait_for_output, "pump is serving")
        cluster_id = await cluster_of(etcd)
        async with connected(f"127.0.0.1:{port}", cluster_id) as client:
            for _ in range(300):
                start_ts, commit_ts = await source.get(), await source.get()
                (answer,) = await client.write_batches([[prewrite(start_ts), commit(start_ts, commit_ts)]])
                assert not answer.errors
                wanted.append((start_ts, commit_ts))
        server.kill()
        (path,) = (tmp_path / "p1" / "kv").glob("*.log")
        pages = path.stat().st_size // PAGE_BYTES
        assert pages >= 8
        shutil.copytree(tmp_path / "p1", tmp_path / "whole")
        for page in (0, pages // 2, pages - 1):
            shutil.rmtree(tmp_path / "p1")
            shutil.copytree(tmp_path / "whole", tmp_path / "p1")
            data = path.read_bytes()
            at = page * PAGE_BYTES
            path.write_bytes(data[:at] + bytes(PAGE_BYTES) + data[at + PAGE_BYTES :])
            server = pump(tmp_path, etcd, "p1", port, "-fake-binlog-interval", "0")
            server.output = tmp_path / f"page{page}.log"
            await asyncio.to_thread(server.start().wait_for_output, "pump is serving")
            async with connected(f"127.0.0.1:{port}", cluster_id) as client:
                assert await served(client, 0) == wanted, page
                assert (await client.inspect()).pending_count == 0
            server.kill()
    finally:
        server.kill()
        await source.close()
