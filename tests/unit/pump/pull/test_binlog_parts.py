"""Large binlogs: served in parts that are never whole in memory, and refused by name above the limit."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from binlog.envelope import encode_binlog, encode_varint, merge
from binlog.errors import DecodeError
from binlog.pb import pump_pb2
from binlog.pb.pump_ext_pb2 import WatermarkReq, WatermarkResp

from pump.errors import Conflict, DamagedRecord, TooLarge
from pump.pull import BinlogPart
from pump.rpc.messages import LARGE_BYTES_MIN, entity, parse_write
from pump.store.store import Store
from tests.unit.pump.build import commit, merged, opened, prewrite, write

PART = 1000
ROWS = bytes(range(256)) * 40


def large_prewrite(start_ts: int, rows: bytes = ROWS) -> bytes:
    table = b"\x08\x01\x12" + encode_varint(len(rows)) + rows + b"\x38\x00"
    return encode_binlog(
        tp=0,
        start_ts=start_ts,
        prewrite_key=b"k",
        prewrite_value=b"\x08\x05\x12" + encode_varint(len(table)) + table,
    )


async def pulled(store: Store, part_bytes_max: int = PART, bytes_max: int = 1 << 20) -> list[bytes | list[BinlogPart]]:
    """Small binlogs as they are, a large one as the list of its parts."""
    found: list[bytes | list[BinlogPart]] = []
    async for chunk in store.reads.pull(0, store.resolved_ts, bytes_max=bytes_max, part_bytes_max=part_bytes_max):
        if not isinstance(chunk, BinlogPart):
            found += [served.payload for served in chunk]
        elif chunk.offset == 0:
            found.append([chunk])
        else:
            assert isinstance(found[-1], list)
            found[-1].append(chunk)
    return found


def whole(parts: bytes | list[BinlogPart]) -> bytes:
    assert isinstance(parts, list)
    assert [part.offset for part in parts] == [sum(len(p.data) for p in parts[:n]) for n in range(len(parts))]
    joined = b"".join(part.data for part in parts)
    assert {part.whole_bytes for part in parts} == {len(joined)}
    assert max(len(part.data) for part in parts) <= PART
    return joined


@pytest.mark.parametrize("part_bytes", [PART, 999, 256])
async def test_a_large_binlog_comes_in_parts_between_small_ones(tmp_path: Path, part_bytes: int) -> None:
    async with opened(tmp_path) as store:
        small = [prewrite(10), prewrite(20), prewrite(50)]
        await write(store, small[0], small[1], large_prewrite(30), small[2])
        await write(store, commit(10, 11), commit(20, 21), commit(30, 31), commit(50, 51))
        await store.resolver.refresh()
        found = await pulled(store, part_bytes)
    assert found[:2] + found[3:] == [merged(10, 11), merged(20, 21), merged(50, 51)]
    assert whole(found[2]) == merge(large_prewrite(30), commit(30, 31))


async def test_pull_without_part_limit_returns_large_binlog_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await write(store, large_prewrite(30), commit(30, 31))
        await store.resolver.refresh()
        assert await pulled(store, 0) == [merge(large_prewrite(30), commit(30, 31))]


async def test_pull_returns_parts_of_overtaken_prewrite_and_unusual_field_order(tmp_path: Path) -> None:
    """A commit that overtook its prewrite, and fields in another order."""
    scalars = b"\x10\x28\x08\x00\x18\x00"  # start_ts 40 before tp
    odd = scalars + large_prewrite(40)[6:]
    async with opened(tmp_path) as store:
        await write(store, commit(30, 31))
        await write(store, large_prewrite(30))
        await write(store, odd, commit(40, 41))
        await store.resolver.refresh()
        found = await pulled(store)
    assert whole(found[0]) == merge(large_prewrite(30), commit(30, 31))
    assert whole(found[1]) == merge(odd, commit(40, 41))


@pytest.mark.parametrize("at", [0, 17, 5000, -1])
async def test_pull_of_damaged_large_binlog_never_sends_its_last_part(tmp_path: Path, at: int) -> None:
    """The last part is held back until the checksum is right."""
    async with opened(tmp_path) as store:
        await write(store, large_prewrite(30), commit(30, 31))
        await store.resolver.refresh()
        complete = store.index.complete(31)
        assert complete is not None
        file = store.log.file(complete.fid)
        place = complete.offset + (at if at >= 0 else 16 + complete.length + at)
        damaged = bytearray(file.path.read_bytes())
        damaged[place] ^= 1
        file.path.write_bytes(damaged)
        seen = 0
        with pytest.raises(DamagedRecord):
            async for part in store.reads.pull(0, store.resolved_ts, bytes_max=100, part_bytes_max=PART):
                assert isinstance(part, BinlogPart)
                seen = part.offset + len(part.data)
        assert seen < complete.served_bytes


async def test_pull_of_large_binlog_needs_memory_for_parts_only(tmp_path: Path) -> None:
    size = 24 << 20
    async with opened(tmp_path) as store:
        await write(store, large_prewrite(30, bytes(size)), commit(30, 31))
        await store.resolver.refresh()
        tracemalloc.start()
        total = 0
        async for part in store.reads.pull(0, store.resolved_ts, bytes_max=1 << 20, part_bytes_max=1 << 20):
            assert isinstance(part, BinlogPart)
            total += len(part.data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total > size
    assert peak < 8 << 20


async def test_a_batch_ends_before_a_large_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await write(store, prewrite(10), commit(10, 11), large_prewrite(30), commit(30, 31))
        await store.resolver.refresh()
        limits = WatermarkReq(batch_bytes_max=1 << 30, large_bytes_min=PART)
        first = await store.reads.plan(0, store.resolved_ts, limits)
        second = await store.reads.plan(30, store.resolved_ts, limits)
        either = await store.reads.plan(0, store.resolved_ts, WatermarkReq(batch_bytes_max=1 << 30))
    size = len(merge(large_prewrite(30), commit(30, 31)))
    assert (first.batch_end_ts, first.batch_count, first.stop, first.stop_ts, first.stop_bytes) == (
        30,
        1,
        WatermarkResp.LARGE,
        31,
        size,
    )
    assert (second.batch_end_ts, second.batch_count, second.stop, second.stop_bytes) == (
        30,
        0,
        WatermarkResp.LARGE,
        size,
    )
    assert (either.batch_count, either.stop) == (2, WatermarkResp.RESOLVED)


async def test_write_above_transaction_bytes_max_is_refused_with_setting_in_error(tmp_path: Path) -> None:
    """And nothing of it is pending afterwards."""
    limit = len(large_prewrite(30))
    async with opened(tmp_path, transaction_bytes_max=limit) as store:
        await write(store, large_prewrite(30))
        (error,) = await store.writes.write([large_prewrite(40, ROWS + b"x")])
        assert isinstance(error, TooLarge)
        assert f"start_ts 40 has {limit + 1} bytes" in str(error)
        assert f"at most {limit} (transaction-bytes-max)" in str(error)
        assert 40 not in store.pending


def test_parse_write_of_large_payload_reads_as_protobuf_does() -> None:
    payload = large_prewrite(30, bytes(LARGE_BYTES_MIN))
    for request in (
        pump_pb2.WriteBinlogReq(clusterID=7, payload=payload).SerializeToString(),
        pump_pb2.WriteBinlogReq(clusterID=1 << 63, payload=payload).SerializeToString(),
        b"\x12" + encode_varint(len(payload)) + payload + b"\x08\x07",  # the other order
        pump_pb2.WriteBinlogReq(clusterID=7, payload=b"small").SerializeToString(),
    ):
        read = pump_pb2.WriteBinlogReq.FromString(request)
        cluster_id, found = parse_write(request)
        assert (cluster_id, bytes(found)) == (read.clusterID, read.payload)
    request = pump_pb2.WriteBinlogReq(clusterID=7, payload=payload).SerializeToString()
    for cut in (*range(8), 100, len(request) - 1):
        torn = request[:cut] if cut > 8 else request[: len(request) - cut - 1]
        with pytest.raises(DecodeError):
            parse_write(torn)


def test_entity_encodes_as_protobuf_does() -> None:
    for start_ts, commit_ts, parts in ((5, 6, [bytes(100), bytes(range(200))]), (1 << 60, (1 << 60) + 1, [b"x"])):
        data = entity(start_ts, commit_ts, parts)
        found = pump_pb2.PullBinlogResp.FromString(data)
        assert found.SerializeToString() == data
        assert found.entity.payload == b"".join(parts)
        assert (found.entity.meta.startTs, found.entity.meta.commitTs) == (start_ts, commit_ts)


async def test_recovery_memory_is_a_small_multiple_of_largest_record(tmp_path: Path) -> None:
    size = 24 << 20
    async with opened(tmp_path) as store:
        await write(store, large_prewrite(30, bytes(size)), large_prewrite(40, bytes(size)), commit(30, 31))
    for path in (tmp_path / "kv").iterdir():
        path.unlink()  # the index is made anew from the log
    tracemalloc.start()
    try:
        async with opened(tmp_path) as store:
            peak = tracemalloc.get_traced_memory()[1]
            assert store.index.complete(31) is not None and 40 in store.pending
    finally:
        tracemalloc.stop()
    assert peak < 4 * size


async def test_write_of_large_binlog_makes_no_copy(tmp_path: Path) -> None:
    """As it came from gRPC: one value that the request, the log and the matcher share."""
    payload = large_prewrite(30, bytes(24 << 20))
    request = pump_pb2.WriteBinlogReq(clusterID=7, payload=payload).SerializeToString()
    async with opened(tmp_path) as store:
        tracemalloc.start()
        try:
            _, found = parse_write(request)
            await write(store, found)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        await write(store, commit(30, 31))
        await store.resolver.refresh()
        assert await pulled(store, 0) == [merge(payload, commit(30, 31))]
    assert peak < 4 << 20


async def test_repeated_large_binlog_is_compared_without_reading_it_whole(tmp_path: Path) -> None:
    """A client repeats what was not answered in time, which is likely for what is large."""
    rows = bytes(range(256)) * (6 << 12)
    payload = large_prewrite(30, rows)
    async with opened(tmp_path) as store:
        await write(store, payload)
        tracemalloc.start()
        try:
            assert await store.writes.write([payload]) == [None]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 12 << 20 < 2 * len(payload)
        for place in (50, len(payload) // 2, len(payload) - 20):
            other = payload[:place] + bytes((payload[place] ^ 1,)) + payload[place + 1 :]
            (refused,) = await store.writes.write([other])
            assert isinstance(refused, Conflict)
        assert isinstance((await store.writes.write([large_prewrite(30, rows[:-1])]))[0], Conflict)
        path = next((tmp_path / "value").glob("*.vlog"))
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        assert isinstance((await store.writes.write([payload]))[0], DamagedRecord)
