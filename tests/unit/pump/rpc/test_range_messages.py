"""A pull by range reads small chunks and sends large messages: nothing is lost, added or moved between the two."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.envelope import scan
from binlog.pb import pump_ext_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from pump.index.keys import COMPLETE, Complete, encode_complete, pack_ts
from pump.log.value_log import LogFile
from pump.pull import BinlogPart, Chunk
from pump.rpc.messages import READ_BYTES, Pulled, range_messages
from pump.store.store import Store
from tests.unit.pump.build import SetClock, commit, opened, prewrite, write
from tests.unit.pump.pull.test_binlog_parts import large_prewrite
from tests.unit.pump.pull.test_ranges import answers, service

ROW = b"\x08\x01\x12\xe8\x07" + bytes(1000)  # a TableMutation of about a kilobyte
END_TS = 1_000_000

Piece = Chunk | BinlogPart

# Chunks by the sizes of their binlogs, and large binlogs by the number of their parts.
sizes = st.lists(st.sampled_from([0, 1, 1000, 50_000, READ_BYTES, 3 * READ_BYTES]), min_size=1, max_size=6)
shapes = st.lists(st.one_of(sizes, st.integers(1, 3)), max_size=12)
bounds = st.sampled_from([1, 300, READ_BYTES - 1, READ_BYTES, 2 * READ_BYTES + 1, 8 * READ_BYTES])


def pieces_of(shape: list[list[int] | int]) -> list[Piece]:
    """Of ascending commit_ts."""
    found: list[Piece] = []
    ts = 0
    for each in shape:
        ts += 10
        if isinstance(each, int):
            found += [BinlogPart(ts, ts - 1, b"part", 4 * number, 4 * each) for number in range(each)]
            continue
        pairs = []
        for _ in each:
            ts += 10
            value = encode_complete(Complete(ts - 1, 0, 0, 1, 0, 0, 0, 0, b""))
            pairs.append((COMPLETE + pack_ts(ts), value))
        found.append(Chunk([bytes([ts % 251]) * size for size in each], pairs))
    return found


def simple(pieces: list[Piece]) -> list[tuple[bytes, int, bool]]:
    """(payload, last commit_ts that may stand behind it, is a part), in order."""
    found = []
    for piece in pieces:
        if isinstance(piece, BinlogPart):
            found.append((piece.data, piece.commit_ts, True))
        else:
            found += [(served.payload, served.commit_ts, False) for served in piece]
    return found


@given(shapes, bounds)
def test_range_messages_contain_all_binlogs_of_chunks_in_order_within_limit(
    shape: list[list[int] | int], bytes_max: int
) -> None:
    """In the same order, and with the commit_ts of the last; no message is larger than its bound and a chunk."""
    pieces = pieces_of(shape)
    messages = list(range_messages(pieces, message_bytes_max=bytes_max))
    left = simple(pieces)
    for message in messages:
        assert isinstance(message, Pulled)
        found = pb.PullRangeResp.FromString(message.data)
        count = len(found.payloads)
        own, left = left[:count], left[count:]
        assert count and list(found.payloads) == [payload for payload, _, _ in own]
        assert found.last_ts == own[-1][1]
        assert message.size == sum(map(len, found.payloads))
        assert message.binlogs == (int(found.part_offset == 0) if found.whole_bytes else count)
        assert [is_part for _, _, is_part in own] == ([True] if found.whole_bytes else [False] * count)
        largest = max((sum(map(len, p.payloads)) for p in pieces if isinstance(p, Chunk)), default=0)
        assert message.size < bytes_max + max(largest, 5)
    assert not left


@pytest.mark.parametrize(
    ("chunk_bytes", "chunks_each"), [(READ_BYTES, [8, 8, 4]), (10, [8, 8, 4]), (3 * READ_BYTES, [3, 3, 3, 3, 3, 3, 2])]
)
def test_range_messages_end_only_when_limit_is_reached(chunk_bytes: int, chunks_each: list[int]) -> None:
    """A reader gets few messages of a backlog, not one for each chunk; and none is large because a chunk is."""
    messages = range_messages(pieces_of([[chunk_bytes]] * 20), message_bytes_max=8 * READ_BYTES)
    assert [message.binlogs for message in messages if isinstance(message, Pulled)] == chunks_each


async def filled(store: Store, count: int) -> None:
    for ts in range(10, 10 + 10 * count, 10):
        await write(store, prewrite(ts, row=ROW), commit(ts, ts + 5))


async def messages_of(store: Store, until_ts: int, bytes_max: int = 0, after_ts: int = 0) -> list[pb.PullRangeResp]:
    request = pb.PullRangeReq(
        cluster_id=1, after_ts=after_ts, until_ts=until_ts, message_bytes_max=bytes_max, part_bytes_max=1 << 20
    )
    return await answers(service(store).pull_range(request.SerializeToString()))


async def test_pull_range_reads_small_chunks_and_sends_large_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5 * READ_BYTES // 1000
    async with opened(tmp_path, SetClock(END_TS), sync=False) as store:
        await filled(store, count)
        until_ts = await store.resolver.refresh()
        reads: list[int] = []
        read = LogFile.read

        def noted(file: LogFile, offset: int, size: int) -> bytes:
            reads.append(size)
            return read(file, offset, size)

        monkeypatch.setattr(LogFile, "read", noted)
        *messages, last = await messages_of(store, until_ts)
    (message,) = messages
    assert [scan(payload).commit_ts for payload in message.payloads] == list(range(15, 15 + 10 * count, 10))
    assert message.last_ts == 15 + 10 * (count - 1)
    assert (last.end.count, last.end.bytes) == (count, sum(map(len, message.payloads)))
    assert len(reads) >= 5 and max(reads) < 2 * READ_BYTES


async def test_pull_range_over_several_files_sends_each_binlog_once(tmp_path: Path) -> None:
    """Every binlog once and in order, in messages that are full but for the last. A pull that begins after any of the
    messages continues there."""
    count = 6 * READ_BYTES // 1000
    wanted = list(range(15, 15 + 10 * count, 10))
    clock = SetClock(1, held=True)  # a new file asks for the time, and commits come above it
    async with opened(tmp_path, clock, sync=False, file_bytes_max=2 * READ_BYTES) as store:
        await filled(store, count)
        clock.ts = END_TS
        until_ts = await store.resolver.refresh()
        for bytes_max in (300_000, 2 * READ_BYTES, READ_BYTES + 1):
            *messages, last = await messages_of(store, until_ts, bytes_max)
            found = [[scan(payload).commit_ts for payload in message.payloads] for message in messages]
            assert [ts for each in found for ts in each] == wanted
            assert [message.last_ts for message in messages] == [each[-1] for each in found]
            sizes = [sum(map(len, message.payloads)) for message in messages]
            assert all(bytes_max - READ_BYTES < size < bytes_max + READ_BYTES for size in sizes[:-1])
            assert (last.end.count, last.end.bytes) == (count, sum(sizes))
            *rest, _ = await messages_of(store, until_ts, bytes_max, after_ts=messages[0].last_ts)
            assert [scan(payload).commit_ts for message in rest for payload in message.payloads] == (
                wanted[len(found[0]) :]
            )
        files = {complete.fid for ts in wanted if (complete := store.index.complete(ts)) is not None}
        assert len(files) > 2


async def test_pull_range_sends_large_binlog_between_messages_of_its_neighbours(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(END_TS), sync=False) as store:
        await filled(store, 3)
        await write(store, large_prewrite(100, bytes(1 << 20)), commit(100, 105), prewrite(110), commit(110, 115))
        *messages, last = await messages_of(store, await store.resolver.refresh())
    first, *parts, following = messages
    assert (first.last_ts, len(first.payloads), first.whole_bytes) == (35, 3, 0)
    assert {(each.last_ts, len(each.payloads)) for each in parts} == {(105, 1)}
    assert sum(len(each.payloads[0]) for each in parts) == parts[0].whole_bytes > 1 << 20
    assert (following.last_ts, len(following.payloads), following.whole_bytes) == (115, 1, 0)
    assert last.end.count == 5
