"""The short way of a pull serves what the simplest one does, byte for byte, and fails as it does; and it is taken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from binlog.envelope import encode_fake
from binlog.errors import BinlogError
from binlog.pb import pump_ext_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from pump import pull as pulling
from pump.index.keys import COMPLETE_BYTES, FLAG_DAMAGED, FLAG_DDL, Complete, encode_complete, unpack_record_offset
from pump.log.record import HEADER_BYTES
from pump.log.value_log import LogFile
from pump.pull import Chunk, Reader
from pump.rpc.messages import Pulled, range_messages
from pump.store.matcher import as_damaged
from pump.store.read_path import without_rows
from pump.store.store import Store
from tests.unit.pump.build import SetClock, commit, merged, opened, prewrite, rollback, write
from tests.unit.pump.pull.simple_pull import simple_messages
from tests.unit.pump.pull.test_binlog_parts import large_prewrite
from tests.unit.pump.pull.test_ranges import service

KINDS = ["row", "row", "row", "middle", "large", "general", "ddl", "fake", "rollback", "passed", "damaged", "lost"]
FIRST_COMMIT_TS = 10_000
STEP = 10
END_TS = 1_000_000


class Asked(NamedTuple):
    """A pull, and how the short way cuts what it reads."""

    after_ts: int
    until_ts: int
    bytes_max: int
    entries_max: int
    part_bytes_max: int
    gap_bytes: int
    window_bytes: int
    spread: int


class Harm(NamedTuple):
    """To a file of the log, at a part of its length: a bit is turned there, or all behind it is gone."""

    how: str
    file: float
    at: float


asked = st.builds(
    Asked,
    st.integers(0, 60).map(lambda n: FIRST_COMMIT_TS + n * STEP // 2 - STEP),
    st.integers(20, 100).map(lambda n: FIRST_COMMIT_TS + n * STEP // 2),
    st.sampled_from([1, 300, 5000, 1 << 20]),
    st.sampled_from([1, 3, 8192]),
    st.sampled_from([100, 2000, 4 << 20]),
    st.sampled_from([0, 50, 400, 64 << 10]),
    st.sampled_from([100, 700, 8 << 20]),
    st.sampled_from([1, 2, 4]),
)
harms = st.lists(
    st.builds(Harm, st.sampled_from(["turn", "cut", "remove"]), st.floats(0, 0.999), st.floats(0, 0.999)), max_size=3
)


def row(size: int) -> bytes:
    return b"\x08\x01\x12" + bytes([size]) + b"x" * size


async def filled(store: Store, kinds: list[str], dice: random.Random) -> None:
    """A transaction of each kind. Prewrites and commits lie in the log in any order, in as many files as there are."""
    order = list(range(len(kinds)))
    dice.shuffle(order)
    events: list[tuple[float, bytes]] = []
    for number, kind in enumerate(kinds):
        start_ts, commit_ts = 1 + number, FIRST_COMMIT_TS + order[number] * STEP
        begin, end = sorted((dice.random(), dice.random()))
        if kind == "fake":
            events.append((begin, encode_fake(commit_ts)))
            continue
        if kind == "general":
            begin, end = end, begin
        first = prewrite(start_ts, row=row(dice.randrange(1, 60)), job=7 if kind == "ddl" else 0)
        if kind in ("middle", "large"):
            first = large_prewrite(start_ts, dice.randbytes(1000 if kind == "middle" else 5000))
        last = rollback(start_ts) if kind == "rollback" else commit(start_ts, commit_ts, key=b"k" * dice.randrange(20))
        events += [(begin, first), (end, last)]
    for _, payload in sorted(events):
        await write(store, payload)
    batch = store.index.batch()
    for number, kind in enumerate(kinds):
        commit_ts = FIRST_COMMIT_TS + order[number] * STEP
        found = store.index.complete(commit_ts)
        if found is not None and kind == "passed":
            batch.complete(commit_ts, without_rows(commit_ts, found))
        if found is not None and kind == "lost":
            batch.complete(commit_ts, as_damaged(found.start_ts, found.pointer))
        if found is not None and kind == "damaged":  # what is said of it counts, whatever lies there
            batch.complete(commit_ts, found._replace(flags=FLAG_DAMAGED))
    store.index.write(batch)


def do_harm(store: Store, harm: Harm) -> None:
    files = store.log.files()
    file = files[int(harm.file * len(files))]
    data = bytearray(file.path.read_bytes())
    at = int(harm.at * len(data))
    if harm.how == "remove" and file is not files[-1]:
        store.log.remove(file.fid)
    elif harm.how == "turn" and data:
        data[at] ^= 1 << at % 8
        file.path.write_bytes(data)
    elif harm.how == "cut":
        file.path.write_bytes(data[:at])


def outcome(messages: Callable[[], Iterator[bytes]]) -> tuple[list[bytes], str]:
    """What came, and the error that ended it."""
    found: list[bytes] = []
    try:
        found.extend(messages())
    except BinlogError as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


@contextmanager
def cutting(pull: Asked) -> Iterator[None]:
    with mock.patch.multiple(
        pulling, WINDOW_GAP_BYTES_MAX=pull.gap_bytes, WINDOW_BYTES_MAX=pull.window_bytes, SPREAD_MAX=pull.spread
    ):
        yield


def check_same(store: Store, pull: Asked) -> None:
    limits = {"bytes_max": pull.bytes_max, "part_bytes_max": pull.part_bytes_max}
    reader = Reader(store.index, store.log, entries_max=pull.entries_max)

    def ours() -> Iterator[bytes]:
        chunks = reader.pull(pull.after_ts, pull.until_ts, fakes=False, **limits)
        for message in range_messages(chunks, message_bytes_max=1):  # a message for each chunk
            assert isinstance(message, Pulled)
            yield message.data

    def simple() -> Iterator[bytes]:
        return simple_messages(
            store.index, store.log, pull.after_ts, pull.until_ts, entries_max=pull.entries_max, **limits
        )

    with cutting(pull):
        found = outcome(ours)
    assert found == outcome(simple)


@given(
    st.lists(st.sampled_from(KINDS), max_size=40),
    st.lists(asked, min_size=1, max_size=4),
    harms,
    st.integers(0, 2**32),
    st.sampled_from([500, 3000, 500 << 20]),
)
def test_fast_pull_of_any_whole_or_damaged_log_equals_reference_pull(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[str],
    pulls: list[Asked],
    harm: list[Harm],
    seed: int,
    file_bytes_max: int,
) -> None:
    async def run() -> None:
        directory = tmp_path_factory.mktemp("same")
        async with opened(directory, SetClock(END_TS), file_bytes_max=file_bytes_max, sync=False) as store:
            await filled(store, kinds, random.Random(seed))
            for pull in pulls:
                check_same(store, pull)
            for each in harm:
                do_harm(store, each)
            for pull in pulls:
                check_same(store, pull)

    asyncio.run(run())


async def test_fast_pull_equals_reference_pull_for_every_flipped_bit_and_file_length(tmp_path: Path) -> None:
    """Nothing that the careful way finds out is missed by the short one."""
    pull = Asked(0, END_TS, 1 << 20, 8192, 4 << 20, 64 << 10, 8 << 20, 4)
    async with opened(tmp_path, SetClock(END_TS)) as store:
        await write(store, prewrite(10), prewrite(20), commit(20, 21), commit(10, 30), encode_fake(40))
        path = store.log.file(0).path
        data = path.read_bytes()
        for at in range(len(data)):
            for bit in range(8):
                path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
                check_same(store, pull)
            path.write_bytes(data[:at])
            check_same(store, pull)
        path.write_bytes(data)
        check_same(store, pull)


@given(
    st.integers(0, 2**62), st.integers(0, 2**32 - 1), st.integers(0, 2**62), st.integers(0, 255), st.binary(max_size=9)
)
def test_unpack_place_returns_fields_of_encoded_complete(
    start: int, fid: int, offset: int, flags: int, head: bytes
) -> None:
    complete = Complete(start, fid, offset, 7, 3, 5, 1, flags, head)
    assert unpack_record_offset(encode_complete(complete)) == (fid, offset, 7, 3, flags)
    assert encode_complete(complete)[COMPLETE_BYTES:] == head


class Reads:
    """(offset, bytes) of each read of a file of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int]] = []
        read = LogFile.read

        def noted(file: LogFile, offset: int, size: int) -> bytes:
            self.seen.append((offset, size))
            return read(file, offset, size)

        monkeypatch.setattr(LogFile, "read", noted)


def no_careful_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise AssertionError("the careful way is taken")

    monkeypatch.setattr(Reader, "_read", refuse)


async def test_fast_pull_reads_adjacent_records_with_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits in another order than prewrites, and a DDL among them; fakes are left out."""
    starts = list(range(10, 2010, 2))
    async with opened(tmp_path, SetClock(END_TS)) as store:
        await write(store, *(prewrite(ts, job=7 if ts == 500 else 0) for ts in starts), encode_fake(2501))
        await write(store, *(commit(ts, 5000 - ts) for ts in starts), encode_fake(4001))
        reads = Reads(monkeypatch)
        no_careful_way(monkeypatch)
        (chunk,) = Reader(store.index, store.log).pull(0, END_TS, bytes_max=1 << 20, fakes=False)
        assert isinstance(chunk, Chunk)
        assert [served.start_ts for served in chunk] == starts[::-1]
        assert [served.payload for served in chunk if served.start_ts != 500] == [
            merged(ts, 5000 - ts) for ts in starts[::-1] if ts != 500
        ]
        ddl = store.index.complete(4500)
        assert ddl is not None and ddl.flags == FLAG_DDL
    assert len(reads.seen) == 1


async def test_fast_pull_does_not_read_bytes_between_distant_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = 5 << 20
    async with opened(tmp_path, SetClock(END_TS), file_bytes_max=far) as store:
        await write(store, prewrite(10), large_prewrite(11, bytes(far)), prewrite(12), prewrite(13))
        await write(store, prewrite(14))
        await write(store, commit(13, 20), commit(10, 21), commit(12, 22), commit(14, 23))
        assert [complete.fid for complete in map(store.index.complete, (20, 21, 22, 23)) if complete] == [0, 0, 0, 1]
        reads = Reads(monkeypatch)
        no_careful_way(monkeypatch)
        (chunk,) = Reader(store.index, store.log).pull(0, END_TS, bytes_max=1 << 20, fakes=False)
        assert isinstance(chunk, Chunk)
        assert chunk.payloads == [merged(13, 20), merged(10, 21), merged(12, 22), merged(14, 23)]
    record = HEADER_BYTES + len(prewrite(10))
    assert sum(size for _, size in reads.seen) == 4 * record


async def test_pull_range_messages_equal_reference_pull_with_default_limits(tmp_path: Path) -> None:
    """With its default bounds, and the message that ends the stream."""
    async with opened(tmp_path, SetClock(END_TS)) as store:
        kinds = [*KINDS[:-2], "row"] * 20
        await filled(store, kinds, random.Random(3))
        until_ts = await store.resolver.refresh()
        request = pb.PullRangeReq(cluster_id=1, until_ts=until_ts, message_bytes_max=3000, part_bytes_max=2000)
        *messages, last = [each async for each in service(store).pull_range(request.SerializeToString())]
        limits = {"bytes_max": 3000, "part_bytes_max": 2000, "entries_max": 8192}
        assert messages == list(simple_messages(store.index, store.log, 0, until_ts, **limits))
        served = [pb.PullRangeResp.FromString(message) for message in messages]
        end = pb.PullRangeResp.FromString(last).end
        assert end.count == sum(0 if each.part_offset else len(each.payloads) for each in served)
        assert end.count == sum(kind not in ("fake", "rollback") for kind in kinds)
        assert end.bytes == sum(len(payload) for each in served for payload in each.payloads)
