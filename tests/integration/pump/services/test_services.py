"""Both services over real gRPC, with etcd and PD in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from binlog.envelope import scan
from binlog.errors import PumpError, name_in
from binlog.pb import pump_ext_pb2 as pb
from binlog.pb import pump_pb2
from binlog.runtime.http import put
from binlog.runtime.security import Security
from grpc import aio

from pumpclient.answer import classify
from tests.integration.pump.rpc import Client, codes, connected, running, take
from tests.integration.pump.services.conftest import CLUSTER
from tests.support.certificates import Authority
from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import commit, encode_fake, merged, prewrite, rollback


async def test_write_batch_watermark_and_pull_range_round_trip(client: Client, pd: StubPD) -> None:
    """WriteBatch → Watermark → PullRange."""
    batches = [
        [prewrite(ts) for ts in range(10, 210, 2)],
        [commit(ts, ts + 1) for ts in range(10, 210, 2)] + [prewrite(300), rollback(301)],
    ]
    answers = await client.write_batches(batches)
    assert [(a.batch_id, len(a.errors)) for a in answers] == [(0, 0), (1, 0)]
    pd.set(1000, hold=True)
    mark = await client.watermark(batch_bytes_max=1 << 20)
    assert (mark.resolved_ts, mark.batch_count, mark.state) == (299, 100, "online")
    messages = await client.pull_range(0, mark.resolved_ts, 500)
    assert len(messages) > 5
    payloads = [payload for message in messages for payload in message.payloads]
    assert payloads == [merged(ts, ts + 1) for ts in range(10, 210, 2)]
    assert mark.batch_bytes == sum(map(len, payloads))
    assert messages[-1].last_ts == 209
    assert await client.pull_range(209, 299) == []
    mark = await client.watermark(after_ts=0, batch_bytes_max=1 << 20, batch_count_max=10)
    assert (mark.batch_end_ts, mark.stop, mark.batch_count) == (29, 1, 10)
    assert [len(m.payloads) for m in await client.pull_range(0, mark.batch_end_ts)] == [10]


async def test_write_batch_tells_each_error_by_its_index(client: Client) -> None:
    """Every payload without an error is durable."""
    (answer,) = await client.write_batches([[prewrite(10), b"\x08", commit(10, 9), commit(10, 20), commit(10, 21)]])
    assert [(e.index, e.code) for e in answer.errors] == [
        (1, grpc.StatusCode.INVALID_ARGUMENT.value[0]),
        (2, grpc.StatusCode.INVALID_ARGUMENT.value[0]),
        (4, grpc.StatusCode.ALREADY_EXISTS.value[0]),
    ]
    assert "unexpected EOF" in answer.errors[0].message
    assert await client.outcome(10, 11) == [20, 0]


async def test_write_binlog_answers_and_refuses_as_original(client: Client) -> None:
    """Success, the probe (P-RPC-05), and errors as UNKNOWN with upstream's text (P-RPC-04)."""
    await client.write(prewrite(10))
    await client.write(b"")
    client.cluster_id = 8
    with pytest.raises(aio.AioRpcError) as error:
        await client.write(prewrite(12))
    assert codes(error) == (grpc.StatusCode.UNKNOWN, "cluster ID are mismatch, 8 vs 7")
    client.cluster_id = CLUSTER
    with pytest.raises(aio.AioRpcError) as error:
        await client.write(prewrite(12)[:-1])
    code, text = codes(error)
    assert code is grpc.StatusCode.UNKNOWN
    assert "unexpected EOF" in text


FAR = (1 << 63) - 5


async def test_ts_far_ahead_is_refused_by_every_method(client: Client) -> None:
    """Once in the log it would stay, and an elected allocator would go on from there."""
    with pytest.raises(aio.AioRpcError) as error:
        await client.write(prewrite(FAR))
    code, text = codes(error)
    assert code is grpc.StatusCode.UNKNOWN
    kind = name_in(error.value.trailing_metadata())
    assert classify(code.value[0], "", kind).refusal is PumpError.TOO_FAR_AHEAD, "no copy of it can be there"
    assert "ts-ahead-max" in text
    (answer,) = await client.write_batches([[prewrite(10), prewrite(FAR), commit(12, FAR)]])
    assert {e.kind for e in answer.errors} == {PumpError.TOO_FAR_AHEAD}
    assert [(e.index, e.code) for e in answer.errors] == [
        (1, grpc.StatusCode.INVALID_ARGUMENT.value[0]),
        (2, grpc.StatusCode.INVALID_ARGUMENT.value[0]),
    ]
    with pytest.raises(aio.AioRpcError) as error:
        await client.settle(10, FAR)
    assert codes(error)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert [entry.start_ts for entry in (await client.inspect()).pending] == [10]


async def test_pull_binlogs_follows_writes_in_commit_order(client: Client, pd: StubPD) -> None:
    """Exclusive position, commit order, fakes unchanged, and a commit arrives without waiting for a tick."""
    await client.write_batches([[prewrite(10), commit(10, 20), encode_fake(25)]])
    pd.set(30, hold=True)
    stream = client.pull_binlogs(0)
    first = await take(stream, 2)
    assert [entity.payload for entity in first] == [merged(10, 20), encode_fake(25)]
    assert (first[0].meta.startTs, first[0].meta.commitTs) == (10, 20)
    stream = client.pull_binlogs(20)
    assert [e.payload for e in await take(stream, 1)] == [encode_fake(25)]

    stream = client.pull_binlogs(25)
    waiting = asyncio.create_task(take(stream, 1))
    await client.write(prewrite(40))
    pd.set(60, hold=True)
    assert not waiting.done()
    await client.write(commit(40, 50))
    assert [entity.payload for entity in await waiting] == [merged(40, 50)]


async def test_pull_of_purged_or_unresolved_range_has_named_status(
    tmp_path: Path, etcd: MemoryEtcd, pd: StubPD
) -> None:
    """OUT_OF_RANGE below the purge point on both services; FAILED_PRECONDITION above every promise."""
    pd.set(100, hold=True)
    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        pump.store.index.save_purged(50)
        with pytest.raises(aio.AioRpcError) as error:
            await client.pull_range(49, 60)
        assert codes(error)[0] is grpc.StatusCode.OUT_OF_RANGE
        with pytest.raises(aio.AioRpcError) as error:
            await take(client.pull_binlogs(49), 1)
        assert codes(error)[0] is grpc.StatusCode.OUT_OF_RANGE
        with pytest.raises(aio.AioRpcError) as error:
            await client.pull_range(50, 101)
        assert codes(error)[0] is grpc.StatusCode.FAILED_PRECONDITION
        assert await client.pull_range(50, 100) == []


async def test_binlogs_before_damaged_record_arrive_before_error(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """Rule 25: on both services the stream has every binlog before the damaged one, and ends with DATA_LOSS."""
    pd.set(5, hold=True)
    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        numbers = range(10, 60, 10)
        await client.write_batches([[prewrite(ts), commit(ts, ts + 5)] for ts in numbers])
        pd.set(100, hold=True)
        await client.watermark()
        log = tmp_path / "p1" / "value" / "000000.vlog"
        data = bytearray(log.read_bytes())
        data[data.index(prewrite(40)) + len(prewrite(40)) - 1] ^= 1
        log.write_bytes(data)
        range_request = pb.PullRangeReq(cluster_id=CLUSTER, until_ts=100).SerializeToString()
        channel: Any = client.channel
        requests: dict[str, tuple[bytes, Any]] = {
            "/binlog.ext.PumpExt/PullRange": (range_request, lambda data: pb.PullRangeResp.FromString(data).payloads),
            "/binlog.Pump/PullBinlogs": (
                pump_pb2.PullBinlogReq(clusterID=CLUSTER).SerializeToString(),
                lambda data: [pump_pb2.PullBinlogResp.FromString(data).entity.payload],
            ),
        }
        for method, (request, payloads) in requests.items():
            call = channel.unary_stream(method)(request, timeout=60)
            found: list[bytes] = []
            with pytest.raises(aio.AioRpcError) as error:
                async for message in call:
                    found += payloads(message)
            code, text = codes(error)
            assert code is grpc.StatusCode.DATA_LOSS and "the binlog of commit_ts 45 needs it" in text
            assert [each for each in found if not scan(each).is_fake] == [merged(ts, ts + 5) for ts in (10, 20, 30)]


async def test_inspect_lists_pending_prewrites_and_settle_ends_them(client: Client, pd: StubPD) -> None:
    """What an operator sees of a writer that died, and how it ends."""
    await client.write_batches([[prewrite(10, key=b"abc"), prewrite(12, job=77), prewrite(14), commit(14, 15)]])
    seen = await client.inspect()
    assert (seen.node_id, seen.state, seen.pending_count, seen.max_commit_ts) == ("p1", "online", 2, 15)
    assert [(p.start_ts, p.ddl_job_id, p.prewrite_key) for p in seen.pending] == [(10, 0, b"abc"), (12, 77, b"k")]
    await client.settle(12)
    await client.settle(10, 20)
    with pytest.raises(aio.AioRpcError) as error:
        await client.settle(10, 20)
    assert codes(error)[0] is grpc.StatusCode.NOT_FOUND
    pd.set(1000, hold=True)
    assert (await client.watermark()).resolved_ts == 1000
    assert (await client.inspect()).pending_count == 0
    await client.write_batches([[prewrite(30), commit(30, 40)]])
    seen = await client.inspect()
    assert (seen.late_commit_count, list(seen.late_commit_ts)) == (1, [40])


async def test_status_pages_have_paths_and_metrics_of_original(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """Upstream's paths and the names of its metrics."""
    import aiohttp

    async with running(tmp_path, etcd, pd) as pump, connected(pump.addr, CLUSTER) as client:
        start_ts = pd.allocate(1)[0]
        await client.write(prewrite(start_ts))
        base = f"http://{pump.status_addr}"
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{base}/status") as response:
                document = await response.json()
            assert document["status"]["p1"]["state"] == "online"
            assert document["pump"]["pendingCount"] == 1
            async with http.get(f"{base}/metrics") as response:
                assert "binlog_pump_pending_count 1.0" in await response.text()
            async with http.get(f"{base}/debug/binlog/{start_ts}") as response:
                assert "schema_version: 5" in await response.text()
            async with http.get(f"{base}/debug/binlog/abc") as response:
                assert await response.text() == "invalid parameter ts: abc"
            async with http.put(f"{base}/state/other/pause") as response:
                assert (await response.json())["message"] == "invalide nodeID other, this pump's nodeID is p1"
            async with http.put(f"{base}/state/p1/pause") as response:
                assert (await response.json())["code"] == 200
        assert await asyncio.wait_for(pump.requested(), 60) == "pause"


async def test_status_pages_are_served_on_grpc_address(tmp_path: Path, etcd: MemoryEtcd, pd: StubPD) -> None:
    """As the original has it: its binlogctl and TiDB ask the address that the registry names."""
    import aiohttp

    settings = {"status-addr": ""}
    async with (
        running(tmp_path, etcd, pd, **settings) as pump,  # type: ignore[arg-type]
        connected(pump.addr, CLUSTER) as client,
        aiohttp.ClientSession() as http,
    ):
        await client.write(b"")
        base = f"http://{pump.addr}"
        async with http.get(f"{base}/status") as response:
            assert (await response.json())["status"]["p1"]["state"] == "online"
        async with http.get(f"{base}/metrics") as response:
            assert "pump_rpc_duration_seconds" in await response.text()
        async with http.get(f"{base}/nothing") as response:
            assert response.status == 404
        await client.write(b"")
        async with http.put(f"{base}/state/p1/pause") as response:
            assert (await response.json())["code"] == 200
        assert await asyncio.wait_for(pump.requested(), 60) == "pause"


async def test_tls_client_with_unlisted_common_name_is_refused(tmp_path: Path, etcd: MemoryEtcd) -> None:
    """S-01, S-03: the same port over TLS; a certificate with another name is refused before any handler."""
    authority = Authority(tmp_path)
    server, friend, stranger = (authority.issue(name) for name in ("pump", "tidb", "stranger"))
    security = {
        "ssl-ca": str(authority.ca),
        "ssl-cert": str(server.cert),
        "ssl-key": str(server.key),
        "cert-allowed-cn": ["tidb", "pump"],
    }
    plain = Security(str(authority.ca), str(server.cert), str(server.key))
    pd = await StubPD.start(cluster_id=CLUSTER, security=plain)
    try:
        async with running(tmp_path, etcd, pd, security=security, **{"pd-urls": f"https://{pd.addr}"}) as pump:
            for pair, allowed in ((friend, True), (stranger, False)):
                credentials = Security(str(authority.ca), str(pair.cert), str(pair.key)).grpc_channel_credentials()
                assert credentials is not None
                client = Client(pump.addr, CLUSTER)
                client.channel = aio.secure_channel(pump.addr, credentials)
                if allowed:
                    await client.write(b"")
                else:
                    with pytest.raises(aio.AioRpcError, match="client certificate authentication failed"):
                        await client.write(b"")
                await client.close()
                mine = Security(str(authority.ca), str(pair.cert), str(pair.key))
                answer = put(pump.addr, "/state/other/pause", security=mine)
                assert (b"invalide nodeID" if allowed else b"authentication failed") in await answer
    finally:
        await pd.close()
