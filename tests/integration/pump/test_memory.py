"""What a pump process takes of memory for a large transaction: its size once, not a multiple of it (issue: one large
transaction must pass with little memory), and nothing where it is refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from binlog.pb import pump_pb2
from grpc import aio

from tests.integration.drainer.large_case import peak_rss
from tests.integration.pump.rpc import Client, connected, until
from tests.integration.pump.test_large import large
from tests.integration.pump.test_process import cluster_of, pump
from tests.support.servers import Etcd, free_port
from tests.unit.pump.build import commit

pytestmark = [pytest.mark.slow, pytest.mark.integration]

MIB = 1 << 20
SIZE = 128 * MIB
TIMES_MAX = 1.4


def now_ts() -> int:
    return int(time.time() * 1000) << 18 | 1 << 17


async def written(client: Client, payload: bytes) -> None:
    request = pump_pb2.WriteBinlogReq(clusterID=client.cluster_id, payload=payload)
    await client._unary("/binlog.Pump/WriteBinlog", request, pump_pb2.WriteBinlogResp, timeout_s=200)


async def test_a_large_transaction_is_in_memory_once(tmp_path: Path, etcd: Etcd) -> None:
    """Written, repeated as after a lost answer, and written as a batch; then served."""
    port = free_port()
    server = pump(tmp_path, etcd, "p1", port, "-fake-binlog-interval", "0").start()
    try:
        await asyncio.to_thread(server.wait_for_output, "pump is serving")
        assert server.process is not None
        pid = server.process.pid
        async with connected(f"127.0.0.1:{port}", await cluster_of(etcd)) as client:
            start_ts = now_ts()
            await written(client, large(start_ts, MIB))
            base = peak_rss(pid)

            def rise() -> float:
                return (peak_rss(pid) - base) / SIZE

            payload = large(start_ts + 10, SIZE)
            await written(client, payload)
            assert 0.9 < rise() <= TIMES_MAX, "written"
            await written(client, payload)
            assert rise() <= TIMES_MAX, "repeated"
            (answer,) = await client.write_batches([[large(start_ts + 20, SIZE)]])
            assert not answer.errors and rise() <= TIMES_MAX, "in a batch"
            ends = [commit(start_ts, start_ts + 1), commit(start_ts + 10, start_ts + 11)]
            await client.write_batches([[*ends, commit(start_ts + 20, start_ts + 21)]])

            async def resolved() -> bool:
                return bool((await client.watermark()).resolved_ts >= start_ts + 21)

            await until(resolved, 60)
            parts = await client.pull_range(start_ts + 1, start_ts + 11, part_bytes_max=4 * MIB)
            assert parts[0].whole_bytes == sum(len(part.payloads[0]) for part in parts) > SIZE
            assert rise() <= TIMES_MAX, "served"
    finally:
        server.kill()


@pytest.mark.parametrize("way", ["alone", "alone, compressed", "in a batch"])
async def test_refused_large_write_takes_no_memory(tmp_path: Path, etcd: Etcd, way: str) -> None:
    """By name, and before it takes memory: its first bytes say what it is."""
    port = free_port()
    server = pump(tmp_path, etcd, "p1", port, "-transaction-bytes-max", "1 MiB").start()
    try:
        await asyncio.to_thread(server.wait_for_output, "pump is serving")
        assert server.process is not None
        async with connected(f"127.0.0.1:{port}", await cluster_of(etcd)) as client:
            start_ts = now_ts()
            payload = large(start_ts, SIZE)
            base = peak_rss(server.process.pid)
            with pytest.raises(aio.AioRpcError) as refused:
                if way == "in a batch":
                    await client.write_batches([[payload]])
                else:
                    request = pump_pb2.WriteBinlogReq(clusterID=client.cluster_id, payload=payload)
                    gzip = grpc.Compression.Gzip if way.endswith("compressed") else None
                    call = client.channel.unary_unary("/binlog.Pump/WriteBinlog")
                    await call(request.SerializeToString(), timeout=200, compression=gzip)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            text = refused.value.details() or ""
            assert "transaction-bytes-max" in text
            if way == "alone":
                assert text.startswith(f"binlog of start_ts {start_ts} has {len(payload)} bytes")
            assert peak_rss(server.process.pid) - base < 24 * MIB
            assert (await client.inspect()).pending_count == 0
    finally:
        server.kill()
