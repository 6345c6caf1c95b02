"""Large transactions over real gRPC: refused by name on every way in, served in parts, and as one message to Go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
from binlog.envelope import encode_binlog, encode_varint, merge
from binlog.errors import BinlogError, PumpError, name_in
from binlog.pb import pump_ext_pb2 as pb
from grpc import aio

from pump.rpc.admission import InFlight
from pump.rpc.extension_service import ExtService
from pump.rpc.methods import PumpListener
from pump.rpc.original_service import Gate, PumpService
from pump.store.write_path import Done
from pumpclient.answer import classify
from tests.integration.pump.rpc import connected, running, take, until
from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import commit, merged, prewrite

CLUSTER = 7
MIB = 1 << 20


def large(start_ts: int, size: int) -> bytes:
    table = b"\x08\x01\x12" + encode_varint(size) + bytes(size) + b"\x38\x00"
    value = b"\x08\x05\x12" + encode_varint(len(table)) + table
    return encode_binlog(tp=0, start_ts=start_ts, prewrite_key=b"k", prewrite_value=value)


@pytest.fixture
async def pd() -> AsyncIterator[StubPD]:
    stub = await StubPD.start(cluster_id=CLUSTER)
    stub.set(5, hold=True)
    yield stub
    await stub.close()


async def test_transaction_above_transaction_bytes_max_is_refused_by_every_method(tmp_path: Path, pd: StubPD) -> None:
    """TiDB's client gives up at ResourceExhausted (C-10), which is right: no repetition would be taken."""
    settings = {"transaction-bytes-max": MIB}
    async with (
        running(tmp_path, MemoryEtcd(), pd, **settings) as pump,  # type: ignore[arg-type]
        connected(pump.addr, CLUSTER) as client,
    ):
        with pytest.raises(aio.AioRpcError) as refused:
            await client.write(large(10, MIB))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "start_ts 10" in (refused.value.details() or "")
        assert "transaction-bytes-max" in (refused.value.details() or "")
        (answer,) = await client.write_batches([[prewrite(20), large(30, MIB)]])
        assert [(e.index, e.code) for e in answer.errors] == [(1, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])]
        assert "transaction-bytes-max" in answer.errors[0].message
        assert [p.start_ts for p in (await client.inspect()).pending] == [20]


async def test_large_transaction_is_planned_and_served_in_parts_or_whole(tmp_path: Path, pd: StubPD) -> None:
    size = 9 * MIB
    async with running(tmp_path, MemoryEtcd(), pd) as pump, connected(pump.addr, CLUSTER) as client:
        await client.write(prewrite(10))
        await client.write(large(20, size))
        await client.write_batches([[commit(10, 11), commit(20, 21)]])
        pd.set(100, hold=True)
        expected = merge(large(20, size), commit(20, 21))
        mark = await client.watermark(batch_bytes_max=64 * MIB, large_bytes_min=4 * MIB)
        assert (mark.batch_end_ts, mark.batch_count, mark.stop) == (20, 1, pb.WatermarkResp.LARGE)
        assert (mark.stop_ts, mark.stop_bytes) == (21, len(expected))
        messages = await client.pull_range(0, 99, part_bytes_max=4 * MIB)
        assert list(messages[0].payloads) == [merged(10, 11)] and not messages[0].whole_bytes
        parts = messages[1:]
        assert b"".join(part.payloads[0] for part in parts) == expected
        assert {(part.whole_bytes, part.last_ts) for part in parts} == {(len(expected), 21)}
        assert max(part.ByteSize() for part in messages) < 4 * MIB + 100
        assert [p for m in await client.pull_range(0, 99) for p in m.payloads] == [merged(10, 11), expected]
        entities = await take(client.pull_binlogs(0), 2)
        assert entities[1].payload == expected
        assert (entities[1].meta.startTs, entities[1].meta.commitTs) == (20, 21)


class SlowStore:
    """A store, and its write path: writes end when the test says so."""

    def __init__(self) -> None:
        self.writes = self
        self.go_on = asyncio.Event()
        self.begun = 0

    async def write(self, payloads: Sequence[bytes], *, refuse_prewrites: str = "") -> list[BinlogError | None]:
        self.begun += 1
        await self.go_on.wait()
        return [None] * len(payloads)

    def submit(self, payloads: Sequence[bytes], done: Done, *, refuse_prewrites: str = "") -> None:
        asyncio.ensure_future(self.write(payloads)).add_done_callback(lambda written: done(written.result(), ()))


async def test_write_above_in_flight_bytes_max_is_refused_and_can_be_repeated() -> None:
    """RESOURCE_EXHAUSTED. For TiDB it is UNKNOWN, or its client would give up instead of trying another pump (C-10)."""
    store, gate = SlowStore(), Gate(CLUSTER, lambda: "")
    gate.closed = ""
    in_flight = InFlight(10 * MIB)
    listener = PumpListener(
        [
            PumpService(store, gate, in_flight).service(),  # type: ignore[arg-type]
            ExtService(store, gate, in_flight, node_id="p", state=lambda: "online").service(),  # type: ignore[arg-type]
        ],
        in_flight=in_flight,
    )
    await listener.start("127.0.0.1:0")
    async with connected(f"127.0.0.1:{listener.port}", CLUSTER) as client:
        first = asyncio.create_task(client.write(large(10, 9 * MIB)))

        async def begun() -> bool:
            return store.begun == 1

        await until(begun)
        with pytest.raises(aio.AioRpcError) as refused:
            await client.write(large(20, 9 * MIB))
        assert refused.value.code() is grpc.StatusCode.UNKNOWN
        assert "too many bytes in flight" in (refused.value.details() or "")
        assert classify(2, "", name_in(refused.value.trailing_metadata())).refusal is PumpError.OVERLOADED
        (answer,) = await client.write_batches([[large(30, 5 * MIB), large(40, 5 * MIB)]])
        assert [(e.index, e.code) for e in answer.errors] == [(0, 8), (1, 8)]
        assert {error.kind for error in answer.errors} == {PumpError.OVERLOADED}
        small = asyncio.create_task(client.write(prewrite(50)))
        store.go_on.set()
        await asyncio.gather(first, small)
        await client.write(large(20, 9 * MIB))
        assert in_flight.bytes == 0
    await listener.stop(0)


async def test_pull_message_size_is_capped_for_any_request(tmp_path: Path, pd: StubPD) -> None:
    async with running(tmp_path, MemoryEtcd(), pd) as pump, connected(pump.addr, CLUSTER) as client:
        for ts in range(10, 60, 2):
            await client.write_batches([[large(ts, MIB), commit(ts, ts + 1)]])
        pd.set(100, hold=True)
        await client.watermark()
        messages = await client.pull_range(0, 99, message_bytes_max=1 << 40, part_bytes_max=1 << 40)
        assert sum(len(m.payloads) for m in messages) == 25
        assert max(m.ByteSize() for m in messages) < 18 * MIB


async def test_pulls_above_in_flight_bytes_max_are_refused(tmp_path: Path, pd: StubPD) -> None:
    settings = {"in-flight-bytes-max": 64 * MIB}
    async with (
        running(tmp_path, MemoryEtcd(), pd, **settings) as pump,  # type: ignore[arg-type]
        connected(pump.addr, CLUSTER) as client,
    ):
        pulls = [asyncio.create_task(take(client.pull_binlogs(0), 1)) for _ in range(10)]
        try:
            done, _ = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            errors = [error for pull in done if isinstance(error := pull.exception(), aio.AioRpcError)]
            assert errors and all("too many bytes in flight" in (e.details() or "") for e in errors)
            with pytest.raises(aio.AioRpcError) as refused:
                await client.pull_range(0, 1)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            for pull in pulls:
                pull.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)

        async def taken_again() -> bool:
            with contextlib.suppress(aio.AioRpcError):
                return await client.pull_range(0, 1) == []
            return False

        await until(taken_again)
