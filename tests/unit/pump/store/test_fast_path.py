"""Fast-path binlogs in one pass, against the way that every binlog can go."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from binlog.envelope import Envelope, encode_binlog, encode_fake, scan
from binlog.errors import BinlogError, DecodeError, LogBroken, NotOnline
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import Conflict, Stopping, TooLarge
from pump.store import group_commit, write_path
from pump.store.fast_path import fast_prewrites, scan_fast
from pump.store.store import Store
from tests.support.examples import FEW
from tests.unit.pump.build import SetClock, binlogs_of, commit, opened, prewrite, rollback

BASE = 470_000_000_000_000_000  # a TSO of nine bytes
TS = st.one_of(st.integers(BASE, BASE + 40), st.integers(1 << 56, (1 << 62) - 1))
ANY = st.one_of(
    st.builds(prewrite, TS, row=st.binary(max_size=120)),
    st.builds(commit, TS, TS),
    st.builds(rollback, TS),
    st.builds(encode_fake, TS),
    st.builds(prewrite, TS, job=st.just(7)),
    st.builds(prewrite, TS, writer=st.just(b"w" * 16)),
    st.builds(encode_binlog, tp=st.integers(0, 2), start_ts=st.integers(0, 1 << 20), commit_ts=TS),
    st.just(b""),
)


@given(ANY, st.data())
def test_scan_usual_reads_any_binlog_as_scan_does(payload: bytes, drawn: st.DataObject) -> None:
    """Also of bytes that were cut or changed: then there is nothing, or what `scan` says."""
    if drawn.draw(st.booleans()):
        payload = payload[: drawn.draw(st.integers(0, len(payload)))]
    if payload and drawn.draw(st.booleans()):
        at = drawn.draw(st.integers(0, len(payload) - 1))
        payload = payload[:at] + bytes((drawn.draw(st.integers(0, 255)),)) + payload[at + 1 :]
    agrees(payload)


def agrees(payload: bytes) -> bool:
    """Whether the fast path takes it; then it is what `scan` says."""
    fast = scan_fast([payload])
    if fast is None:
        return False
    ((start_ts, commit_ts, key_end, version),) = fast.binlogs
    found = scan(payload)
    assert (found.tp, found.start_ts, found.commit_ts) == (1 if commit_ts else 0, start_ts, commit_ts)
    assert (found.key_end, found.ddl_job_id, found.writer_at, found.query_at) == (key_end, 0, 0, 0)
    assert found.schema_version == version and found.body_offset
    assert (fast.largest_ts, fast.largest_bytes, fast.size) == (max(start_ts, commit_ts), len(payload), len(payload))
    wanted = [] if commit_ts else [(start_ts, len(payload), payload[found.key_at : found.key_end])]
    assert list(fast_prewrites(fast, [payload])) == wanted
    return True


def prewrite_of(row: bytes, key: bytes = b"k") -> bytes:
    """As TiDB writes it, with a length of as many bytes as it needs."""
    size = len(row)
    encoded = bytearray()
    while size > 127:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    value = b"\x08\x05\x12" + bytes(encoded) + row
    return encode_binlog(tp=0, start_ts=BASE, prewrite_key=key, prewrite_value=value)


ROWS = (b"\x08\x01", bytes(100), bytes(118), bytes(119), bytes(300))  # values of one and of two bytes of length
WHOLE = [
    *(prewrite_of(row, key) for row in ROWS for key in (b"k", b"k" * 40)),
    prewrite(BASE + 1, key=b"k" * 127),
    *(commit(BASE + 1, BASE + 9, key=key) for key in (b"k", b"k" * 40, b"k" * 127)),
]


@pytest.mark.parametrize("payload", WHOLE, ids=range(len(WHOLE)))
def test_scan_usual_agrees_with_scan_after_any_byte_change(payload: bytes) -> None:
    """What stands between the key, the row and the ends decides; a byte more or less anywhere, too."""
    assert agrees(payload)
    within = [at for at in range(len(payload)) if at < 28 or at > len(payload) - 8 or payload[at] not in (0, 0x6B)]
    for at in within:
        for value in range(256):
            agrees(payload[:at] + bytes((value,)) + payload[at + 1 :])
        agrees(payload[:at] + payload[at + 1 :])
        for value in (0, 1, 0x08, 0x80, 0xFF):
            agrees(payload[:at] + bytes((value,)) + payload[at:])


@pytest.mark.parametrize("length", [127, 128, 16383, 16384, 1 << 21])
def test_scan_usual_leaves_value_longer_than_two_length_bytes_to_scan(length: int) -> None:
    """Of more than two bytes of length it goes the general way."""
    payload = prewrite_of(bytes(length))
    assert agrees(payload) == (scan(payload).value_end - scan(payload).value_at < 1 << 14)


def test_scan_usual_does_not_take_three_byte_length_for_two_bytes() -> None:
    """Bytes that would be whole if its third byte were the first of the value; as they are, they end within it."""
    head = prewrite(BASE, row=b"")[: scan(prewrite(BASE, row=b"")).key_end]
    value = b"\x08\x05\x12" + bytes(16389 - 3)
    payload = head + b"\x2a\x85\x80" + value + b"\x38\x00\x40\x00"
    assert scan_fast([payload]) is None
    with pytest.raises(DecodeError):
        scan(payload)


@pytest.mark.parametrize("key_bytes", [127, 128, 300])
def test_scan_usual_leaves_key_longer_than_127_bytes_to_scan(key_bytes: int) -> None:
    for payload in (prewrite(BASE, key=b"k" * key_bytes), commit(BASE, BASE + 1, key=b"k" * key_bytes)):
        assert agrees(payload) == (key_bytes < 128)


def test_scan_usual_rejects_commit_ts_not_above_start_ts() -> None:
    for commit_ts in (BASE - 1, BASE):
        assert scan_fast([commit(BASE, commit_ts)]) is None


def test_scan_usual_largest_ts_is_over_prewrites_and_commits() -> None:
    for ends, largest in ((BASE + 9, BASE + 9), (BASE + 3, BASE + 5)):
        fast = scan_fast([prewrite(BASE + 5), commit(BASE + 1, ends), prewrite(BASE + 2)])
        assert fast is not None and fast.largest_ts == largest


def test_scan_usual_accepts_tidb_binlogs_and_no_others() -> None:
    assert scan_fast([prewrite(BASE, row=bytes(200)), commit(BASE, BASE + 1)]) is not None
    for other in (prewrite(5), rollback(BASE), prewrite(BASE, job=3), prewrite(BASE, writer=b"w" * 16), b""):
        assert scan_fast([prewrite(BASE), other]) is None
    assert scan_fast([]) is None


Way = Callable[[Store, Sequence[bytes]], Awaitable[list[BinlogError | None]]]

SMALL = st.integers(BASE, BASE + 12)
STEPS = st.one_of(
    st.builds(prewrite, SMALL, row=st.sampled_from([b"\x08\x01", b"\x08\x02"])),
    st.builds(commit, SMALL, SMALL),
    st.builds(commit, SMALL, SMALL),
    st.builds(rollback, SMALL),
    st.builds(encode_fake, SMALL),
)


async def submitted(store: Store, payloads: Sequence[bytes]) -> list[BinlogError | None]:
    found: asyncio.Future[list[BinlogError | None]] = asyncio.get_running_loop().create_future()

    def done(results: list[BinlogError | None], left: Sequence[int]) -> None:
        assert not left
        found.set_result(results)

    store.writes.submit(payloads, done)
    return await asyncio.wait_for(found, 60)


def contents(store: Store) -> list[tuple[bytes, bytes]]:
    """The index, but for the log's places of which there may be others in another order."""
    return list(store.index._db.iterator())


def written(store: Store, payloads: Sequence[bytes]) -> Awaitable[list[BinlogError | None]]:
    return store.writes.write(payloads)


async def written_as_any(store: Store, payloads: Sequence[bytes]) -> list[BinlogError | None]:
    """With a probe, which is nothing but unusual, so that none of them is handled as usual."""
    return (await store.writes.write([*payloads, b""]))[:-1]


async def play(directory: Path, groups: Sequence[Sequence[bytes]], way: Way, **options: object) -> list[object]:
    said: list[object] = []
    async with opened(directory, SetClock(BASE + 1000, held=True), **options) as store:
        for group in groups:
            results = await way(store, group)
            said += [None if error is None else type(error) for error in results]
        pending = store.pending.first(100)
        said.append([entry.start_ts for entry in pending])
        said.append([(entry.size, entry.prewrite_key, entry.held, entry.in_flight) for entry in pending])
        said.append((store.writes.late_commits, store.writes.activity))
        await store.resolver.refresh()
        said.append((store.resolved_ts, await binlogs_of(store, fakes=True)))
        head = store.index.own_head()
        said.append(([file.max_ts for file in store.log.files()], head and head.max_ts))
        said += [pair for pair in contents(store) if not pair[0].startswith((b"!binlog!", b"sc!"))]
    async with opened(directory, SetClock(BASE + 1000, held=True)) as store:
        said.append([entry.start_ts for entry in store.pending.first(100)])
    return said


@FEW
@given(
    st.lists(st.lists(STEPS, min_size=1, max_size=6), max_size=8),
    st.sampled_from([1, 1 << 15]),
    st.sampled_from([0, 1 << 20]),
)
def test_fast_path_stores_and_answers_as_general_path(groups: list[list[bytes]], remembered: int, on_loop: int) -> None:
    """By the fast path, single or in batches, and by that of all; in groups of any size, judged on the loop
    or by the thread; with much remembered of what was stored lately, or next to nothing."""
    directory = Path(tempfile.mkdtemp(prefix="usual-"))
    try:
        options = {"recent_max": remembered, "loop_bytes_max": on_loop}
        alone = [[step] for group in groups for step in group]
        first = asyncio.run(play(directory / "a", groups, submitted, **options))
        second = asyncio.run(play(directory / "b", groups, written, **options))
        third = asyncio.run(play(directory / "c", groups, written_as_any, **options))
        fourth = asyncio.run(play(directory / "d", alone, written_as_any, **options))
    finally:
        shutil.rmtree(directory)
    assert first == second == third == fourth


@pytest.mark.parametrize("on_loop", [0, 1 << 20])
async def test_fast_path_scans_no_single_binlog_of_usual_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_loop: int
) -> None:
    """Neither on the loop nor in the thread; what has another shape among them has every one scanned."""
    scanned: list[bytes] = []

    def scan_one(payload: bytes) -> Envelope:
        scanned.append(payload)
        return scan(payload)

    monkeypatch.setattr(write_path, "scan", scan_one)
    monkeypatch.setattr(group_commit, "scan", scan_one)
    async with opened(tmp_path, SetClock(BASE + 1000), loop_bytes_max=on_loop) as store:
        starts = range(BASE, BASE + 200, 2)
        batches = [prewrite(ts) for ts in starts], [commit(ts, ts + 1) for ts in starts]
        assert await asyncio.gather(*map(store.writes.write, batches)) == [[None] * 100] * 2
        assert not scanned
        assert await store.writes.write([prewrite(BASE + 400), rollback(BASE + 400)]) == [None] * 2
        assert len(scanned) == 2
        await store.resolver.refresh()
        assert len(await binlogs_of(store)) == 100 and not store.pending


@pytest.mark.parametrize("way", [submitted, written])
async def test_fast_path_refuses_binlog_too_large_or_too_far_ahead_alone(tmp_path: Path, way: Way) -> None:
    """By either way: the others of its batch are written."""
    async with opened(tmp_path, SetClock(BASE + 1000), transaction_bytes_max=100) as store:
        assert await way(store, [prewrite(BASE), prewrite(BASE + 1, row=bytes(20))]) == [None] * 2
        results = await way(store, [prewrite(BASE + 2), prewrite(BASE + 3, row=bytes(120)), commit(BASE, BASE + 4)])
        assert [type(error) for error in results] == [type(None), TooLarge, type(None)]
        assert [entry.start_ts for entry in store.pending.first(9)] == [BASE + 1, BASE + 2]
        far = 1 << 62
        (error,) = await store.writes.write([prewrite(far)])
        assert isinstance(error, BinlogError) and far not in store.pending


async def test_cancelled_fast_path_batch_leaves_nothing_before_it_is_queued(tmp_path: Path) -> None:
    """Before it is queued nothing of it is left; afterwards it is written, and only nobody is told."""
    async with opened(tmp_path, SetClock(BASE + 1000), wait_max_s=0.0) as store:
        store._writer._room.clear()
        waiting = asyncio.create_task(store.writes.write([prewrite(BASE), prewrite(BASE + 1)]))
        await asyncio.sleep(0)
        assert BASE in store.pending and not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert BASE not in store.pending and not store.writes._under_way
        store._writer._room.set()
        queued = asyncio.create_task(store.writes.write([prewrite(BASE + 2)]))
        await asyncio.sleep(0)
        assert BASE + 2 in store.pending
        queued.cancel()
        await asyncio.wait([queued])
        assert await store.writes.write([commit(BASE + 2, BASE + 3)]) == [None]
        assert queued.cancelled() and not store.pending and store.index.outcome(BASE + 2) == BASE + 3


def in_another_order(start_ts: int) -> bytes:
    """A prewrite with its key behind its value."""
    payload = prewrite(start_ts, row=bytes(60))
    found = scan(payload)
    key, rest = payload[found.key_at - 2 : found.key_end], payload[found.key_end :]
    return payload[: found.key_at - 2] + rest + key


FIRST: dict[str, bytes] = {
    "in another order": in_another_order(BASE),
    "of a DDL": prewrite(BASE, job=7),
    "usual": prewrite(BASE, row=bytes(60)),
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("file_bytes_max", [70, 1 << 20])
async def test_fast_path_commit_of_any_prewrite_stores_as_general_path_does(
    tmp_path: Path, first: str, file_bytes_max: int
) -> None:
    """Also of one in an earlier file, which must stay for as long as the commit; and again, with another ts."""
    groups = [[FIRST[first]], [commit(BASE, BASE + 5)], [commit(BASE, BASE + 5)], [commit(BASE, BASE + 7)],
              [prewrite(BASE + 1), commit(BASE + 1, BASE + 5)], [prewrite(BASE + 5)]]  # fmt: skip
    said = []
    ways: list[Way] = [submitted, written_as_any]
    for way in ways:
        directory = tmp_path / way.__name__
        said.append(await play(directory, groups, way, file_bytes_max=file_bytes_max))
        async with opened(directory, SetClock(BASE + 1000, held=True)) as store:
            said[-1].append(store.index.needs())
            said[-1].append([value for key, value in contents(store) if key.startswith(b"cm:")])
    assert said[0] == said[1]
    assert said[0][-2] or file_bytes_max > 70 or first == "of a DDL", "the row fills a file, its commit has room"


async def test_fast_path_group_rotates_files_and_records_commits_across_files(tmp_path: Path) -> None:
    """Its file gets its footer behind it, and a commit in another file than its prewrite is known as such."""
    async with opened(tmp_path, SetClock(BASE + 1000), file_bytes_max=400) as store:
        for number in range(0, 20, 2):
            assert await submitted(store, [prewrite(BASE + number, row=bytes(100))]) == [None]
        assert await submitted(store, [commit(BASE + 2 * n, BASE + 2 * n + 1) for n in range(10)]) == [None] * 10
        await store.resolver.refresh()
        assert len(await binlogs_of(store)) == 10
        files = store.log.files()
        assert len(files) > 3 and all(file.closed for file in files[:-1])
        assert store.index.needs()[0] > BASE


async def test_fast_path_counts_late_commit_and_refuses_on_full_disk(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(BASE + 1000)) as store:
        assert await submitted(store, [prewrite(BASE)]) == [None]
        store.resolver.ts = BASE + 5
        assert await submitted(store, [commit(BASE, BASE + 3)]) == [None]
        assert list(store.writes.late_ts) == [BASE + 3]
        store.space._stop_bytes = 1 << 62
        (error,) = await submitted(store, [prewrite(BASE + 20)])
        assert "space" in str(error) and BASE + 20 not in store.pending


@pytest.mark.parametrize("fails", [False, True])
async def test_fast_path_group_has_no_effect_before_its_sync_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """While a group's sync is under way: nobody is answered, neither its callers nor those who repeat its binlogs; the
    resolved ts stays below its prewrites and a commit of its own is not served. If the sync fails, none of them hears
    of success."""
    async with opened(tmp_path, clock := SetClock(BASE - 1000, held=True), wait_max_s=0.0) as store:
        assert await submitted(store, [prewrite(BASE)]) == [None]
        under_way, gate = threading.Event(), threading.Event()

        def sync(_fd: int) -> None:
            under_way.set()
            assert gate.wait(60)
            if fails:
                raise OSError(5, "an I/O error")

        monkeypatch.setattr(store.log, "sync", sync)
        group = [prewrite(BASE + 1), commit(BASE, BASE + 2), prewrite(BASE + 3), commit(BASE + 3, BASE + 4)]
        conflicts = [prewrite(BASE + 1, row=b"\x08\x02"), commit(BASE, BASE + 5)]
        try:
            calls = [asyncio.create_task(submitted(store, each)) for each in (group, group[1:], conflicts, group[:1])]
            assert await asyncio.to_thread(under_way.wait, 60)
            clock.ts = BASE + 1000
            await store.resolver.refresh()
            assert store.resolved_ts == BASE - 1
            assert await binlogs_of(store) == [] and store.index.outcome(BASE) is None
            assert not any(call.done() for call in calls)
        finally:
            gate.set()
        answers = await asyncio.gather(*calls)
        await store.resolver.refresh()
        if fails:
            assert all(error is not None for results in answers for error in results)
            assert store.resolved_ts == BASE - 1 and store.index.outcome(BASE) is None
            assert [entry.start_ts for entry in store.pending.first(9)] == [BASE, BASE + 1, BASE + 3]
        else:
            assert answers[:2] == [[None] * 4, [None] * 3] and answers[3] == [None]
            assert [type(error) for error in answers[2]] == [Conflict, Conflict]
            assert store.resolved_ts == BASE and [e.start_ts for e in store.pending.first(9)] == [BASE + 1]
            assert store.index.outcome(BASE) == BASE + 2


@pytest.mark.parametrize("remembered", [1, 1 << 15])
async def test_fast_path_refuses_ts_used_by_earlier_commit(tmp_path: Path, remembered: int) -> None:
    """By a later group, one with the set of recent ts changed in between, and after many changes."""
    async with opened(tmp_path, SetClock(BASE + 1000, held=True), recent_max=remembered) as store:
        assert await submitted(store, [prewrite(BASE), prewrite(BASE + 1)]) == [None] * 2
        assert await submitted(store, [commit(BASE, BASE + 9)]) == [None]
        for number in range(3):
            (error,) = await submitted(store, [commit(BASE + 1, BASE + 9)])
            assert isinstance(error, Conflict)
            (error,) = await submitted(store, [prewrite(BASE + 9)])
            assert isinstance(error, Conflict)
            assert await submitted(store, [commit(BASE, BASE + 9)]) == [None]
            assert await submitted(store, [prewrite(BASE + 20 + number)]) == [None]
        assert BASE + 1 in store.pending and BASE + 9 not in store.pending


async def test_writes_submitted_by_a_report_are_reported_behind_earlier_ones(tmp_path: Path) -> None:
    """Where a commit was reported before its prewrite, the prewrite would stay pending for ever."""
    # A short write is done when `submit` returns.
    async with opened(tmp_path, SetClock(BASE + 1000), wait_max_s=60.0) as store:
        told: list[str] = []
        ended = asyncio.Event()

        def third(_results: list[BinlogError | None], _left: Sequence[int]) -> None:
            told.append("commit")
            ended.set()

        def first(_results: list[BinlogError | None], _left: Sequence[int]) -> None:
            told.append("many")
            store.writes.submit([commit(BASE, BASE + 1)], third)

        many = [prewrite(BASE + 100 + number) for number in range(100)]  # too many to be waited for
        store.writes.submit(many, lambda *_: told.append("under way"))
        store.writes.submit([prewrite(BASE + 300 + number) for number in range(100)], first)
        store.writes.submit([prewrite(BASE)], lambda *_: told.append("prewrite"))
        await asyncio.wait_for(ended.wait(), 60)
        assert told == ["under way", "many", "prewrite", "commit"]
        assert BASE not in store.pending


async def test_seal_waits_for_submitted_writes_and_refuses_later_ones(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(BASE + 1000)) as store:
        told: list[list[BinlogError | None]] = []
        store.writes.submit([prewrite(BASE)], lambda results, _left: told.append(results))
        store.writes.submit([commit(BASE, BASE + 1)], lambda results, _left: told.append(results))
        assert await store.writes.seal("the test seals it", 60) == BASE + 1
        assert told == [[None], [None]]
        with pytest.raises(Stopping, match="the test seals it"):
            store.writes.submit([prewrite(BASE + 9)], lambda results, _left: told.append(results))


async def test_event_loop_waits_for_short_writes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for what the thread does from beginning to end, because it is large."""
    waited: list[bool] = []
    run = group_commit.DiskThread.run

    def watched(
        self: group_commit.DiskThread, job: Callable[[], None], done: Callable[[], object], *, short: bool
    ) -> bool:
        waited.append(short)
        return run(self, job, done, short=short)

    monkeypatch.setattr(group_commit.DiskThread, "run", watched)
    async with opened(tmp_path, SetClock(BASE + 1000)) as store:
        for count in (1, group_commit.SHORT_MAX, group_commit.SHORT_MAX + 1):
            assert not any(await store.writes.write([prewrite(BASE + 100 * len(waited) + at) for at in range(count)]))
        assert waited == [True, True, False]
    async with opened(tmp_path, SetClock(BASE + 1000), loop_bytes_max=0) as store:
        assert await store.writes.write([prewrite(BASE + 502)]) == [None]
    assert waited[3:] == [False]


async def test_fast_path_refuses_prewrites_and_takes_commits_while_pausing(tmp_path: Path) -> None:
    """P-RPC-03, by either way: commits of what is pending are taken."""
    async with opened(tmp_path, SetClock(BASE + 1000)) as store:
        assert await store.writes.write([prewrite(BASE), prewrite(BASE + 1)]) == [None] * 2
        found: asyncio.Future[list[BinlogError | None]] = asyncio.get_running_loop().create_future()
        group = [prewrite(BASE + 2), commit(BASE, BASE + 5)]
        store.writes.submit(group, lambda results, _left: found.set_result(results), refuse_prewrites="pausing")
        group = [prewrite(BASE + 3), commit(BASE + 1, BASE + 6)]
        for results in (await asyncio.wait_for(found, 60), await store.writes.write(group, refuse_prewrites="pausing")):
            assert [type(error) for error in results] == [NotOnline, type(None)]
            assert str(results[0]) == "no online: pausing"
        await store.resolver.refresh()
        assert not store.pending and len(await binlogs_of(store)) == 2


@pytest.mark.parametrize("way", [submitted, written])
async def test_broken_log_refuses_fast_path_prewrites_as_not_online(tmp_path: Path, way: Way) -> None:
    """So that a client goes to another pump; of a commit it is not known."""
    async with opened(tmp_path, SetClock(BASE + 1000)) as store:
        assert await way(store, [prewrite(BASE)]) == [None]
        store.log.give_up("the disk is gone")
        results = await way(store, [prewrite(BASE + 1), commit(BASE, BASE + 2)])
        assert [type(error) for error in results] == [NotOnline, LogBroken]
        assert BASE in store.pending and BASE + 1 not in store.pending


@pytest.mark.parametrize("on_loop", [0, 1 << 20])
async def test_batch_of_repetitions_writes_nothing_and_keeps_head(tmp_path: Path, on_loop: int) -> None:
    """Nor does it move the head, from which the next start reads."""
    batch = [prewrite(BASE), commit(BASE, BASE + 1)]
    async with opened(tmp_path, SetClock(BASE + 1000), loop_bytes_max=on_loop) as store:
        assert await store.writes.write(batch) == [None] * 2
        before, size = store.index.own_head(), store.log.tail.size
        assert before is not None and before.end == size
        assert await store.writes.write(batch) == [None] * 2
        assert (store.index.own_head(), store.log.tail.size) == (before, size)
