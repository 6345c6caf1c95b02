"""Start-up over every way a log and an index can have been left (FORMAT.md, "Recovery")."""

from __future__ import annotations

import shutil
from pathlib import Path

import plyvel
import pytest

from pump.index import keys
from pump.index.leveldb import Index
from pump.log import value_log
from pump.log.value_log import ValueLog
from pump.pull import Reader
from pump.store.recovery import recover
from tests.unit.pump.build import (
    SetClock,
    binlogs_of,
    commit,
    copy_running,
    encode_fake,
    encode_record,
    merged,
    opened,
    prewrite,
    rollback,
)

STEPS = [
    prewrite(10),
    prewrite(11),
    commit(10, 20),
    encode_fake(25),
    rollback(11),
    prewrite(30),
    prewrite(31),
    commit(31, 40),
]
PAIRS = {2: merged(10, 20), 7: merged(31, 40)}  # step → what it makes visible


async def write_all(directory: Path, *, one_batch: bool = False) -> None:
    async with opened(directory, SetClock(1)) as store:
        for batch in [STEPS] if one_batch else [[step] for step in STEPS]:
            assert await store.writes.write(batch) == [None] * len(batch)


def state_after(steps: int) -> tuple[list[bytes], list[int]]:
    """(what is served, what is pending) after the first `steps` binlogs."""
    served = [binlog for step, binlog in PAIRS.items() if step < steps]
    pending = {10: range(1, 3), 11: range(2, 5), 30: range(6, 99), 31: range(7, 8)}
    return served, [ts for ts, while_ in pending.items() if steps in while_]


async def check(directory: Path, steps: int) -> None:
    served, pending = state_after(steps)
    async with opened(directory, SetClock(100)) as store:
        assert [entry.start_ts for entry in store.pending.first(99)] == pending
        store.resolver.ts = 99
        assert await binlogs_of(store) == served


def recovered_from(directory: Path) -> tuple[list[int], list[bytes]]:
    """(what is pending, what is served) by recovery alone, without a store around it."""
    index, log = Index(directory / "kv"), ValueLog(directory / "value")
    damage = log.open(index.own_head())
    found = recover(log, index, damage)
    assert damage == []
    served = [s.payload for c in Reader(index, log).pull(0, 99, bytes_max=1 << 20, fakes=False) for s in c]
    log.close()
    index.close()
    return [entry.start_ts for entry in found.unmatched], served


def without_index(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    shutil.rmtree(target / "kv")
    return target


async def test_recovery_without_index_restores_log_cut_at_any_byte(tmp_path: Path) -> None:
    """The index is lost and the log ends at any byte: what is whole is served, what has no outcome is pending."""
    steps = STEPS[:5]
    lengths = [len(encode_record(step)) for step in steps]
    ends = [sum(lengths[:i]) for i in range(len(steps) + 1)]
    data = b"".join(map(encode_record, steps))
    for cut in range(len(data) + 1):
        here = tmp_path / f"cut{cut}"
        (here / "value").mkdir(parents=True)
        (here / "value" / "000000.vlog").write_bytes(data[:cut])
        pending, served = recovered_from(here)
        assert (served, pending) == state_after(max(i for i, end in enumerate(ends) if end <= cut)), cut


async def test_recovery_with_index_restores_log_whose_last_record_is_cut_at_any_byte(tmp_path: Path) -> None:
    """A crash before the last batch was indexed: the index knows all but the last record, whose tail is torn."""
    await write_all(tmp_path / "a")
    last = encode_record(commit(30, 50))
    for cut in range(len(last) + 1):
        here = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "a", here)
        with (here / "value" / "000000.vlog").open("ab") as log:
            log.write(last[:cut])
        async with opened(here, SetClock(100)) as store:
            whole = cut == len(last)
            assert [entry.start_ts for entry in store.pending.first(9)] == ([] if whole else [30])
            assert store.reads.outcome(30) == (50 if whole else 0)
            assert store.damage == []
        shutil.rmtree(here)


async def test_recovery_rebuilds_any_lost_end_of_index(tmp_path: Path) -> None:
    """LevelDB is not synced: any end of it may be gone after a power cut, and comes back from the log."""
    directory = tmp_path / "a"
    copies = []
    async with opened(directory, SetClock(1)) as store:
        for number, step in enumerate(STEPS):
            assert await store.writes.write([step]) == [None]
            copies.append(tmp_path / f"after{number}")
            copy_running(directory / "kv", copies[-1])
    for copy in copies:
        here = tmp_path / f"{copy.name}-dir"
        shutil.copytree(directory, here)
        shutil.rmtree(here / "kv")
        shutil.copytree(copy, here / "kv")
        await check(here, len(STEPS))


async def test_opening_twice_changes_nothing(tmp_path: Path) -> None:
    await write_all(tmp_path / "a", one_batch=True)
    for _ in range(3):
        await check(tmp_path / "a", len(STEPS))


async def test_recovery_adds_records_written_by_go_pump_meanwhile(tmp_path: Path) -> None:
    """A Go pump knows nothing of `cm:` and `sc:`: its head moves on without ours."""
    directory = tmp_path / "a"
    await write_all(directory)
    more = [commit(30, 60), prewrite(70), prewrite(71), commit(70, 80)]
    path = directory / "value" / "000000.vlog"
    with plyvel.DB(str(directory / "kv")) as db, path.open("ab") as log:
        for ts, payload in zip((60, 70, 71, 80), more, strict=True):
            pointer = (0).to_bytes(4, "little") + log.tell().to_bytes(8, "little")
            log.write(encode_record(payload))
            db.put(keys.ts_key(ts), pointer)
            db.put(keys.HEAD, pointer)
            db.put(keys.HANDLE, pointer)
    async with opened(directory, SetClock(100)) as store:
        assert [entry.start_ts for entry in store.pending.first(9)] == [71]
        store.resolver.ts = 99
        assert await binlogs_of(store) == [merged(10, 20), merged(31, 40), merged(30, 60), merged(70, 80)]
        head = store.index.own_head()
        assert head is not None
        assert head.pointer == store.index.head()


async def test_recovery_serves_commit_whose_prewrite_is_before_read_start(tmp_path: Path) -> None:
    """Reading begins at handlePointer; a commit after it may need a prewrite from before (a Go pump moved it on)."""
    directory = tmp_path / "a"
    await write_all(directory)
    with plyvel.DB(str(directory / "kv")) as db:
        db.put(keys.HANDLE, db.get(keys.HEAD))
    with (directory / "value" / "000000.vlog").open("ab") as log:
        log.write(encode_record(commit(30, 60)))
    async with opened(directory, SetClock(100)) as store:
        store.resolver.ts = 99
        assert (await binlogs_of(store))[-1] == merged(30, 60)


@pytest.mark.parametrize("limit", [1, 60, 100, 1000])
async def test_recovery_handles_file_border_between_prewrite_and_commit(tmp_path: Path, limit: int) -> None:
    """Every file boundary between a prewrite and its commit."""
    async with opened(tmp_path / "a", SetClock(1), file_bytes_max=limit) as store:
        for step in STEPS:
            assert await store.writes.write([step]) == [None]
        assert (store.index.needs() != {}) == (limit < 1000)
    await check(tmp_path / "a", len(STEPS))
    await check(without_index(tmp_path / "a", tmp_path / "b"), len(STEPS))


async def test_recovery_reports_record_with_valid_checksum_that_is_no_binlog(tmp_path: Path) -> None:
    """A record whose payload is no binlog is damage by its writer: reported, stepped over."""
    await write_all(tmp_path / "a")
    here = without_index(tmp_path / "a", tmp_path / "b")
    with (here / "value" / "000000.vlog").open("ab") as log:
        log.write(encode_record(b"\xff\xff\xff"))
        log.write(encode_record(commit(30, 60)))
    async with opened(here, SetClock(100)) as store:
        assert "is not a binlog" in str(store.damage[0])
        assert store.reads.outcome(30) == 60


async def test_recovery_logs_percentage_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "a", SetClock(100)) as store:
        assert await store.writes.write([prewrite(ts) for ts in range(1, 5)]) == [None] * 4
    monkeypatch.setattr(value_log, "LOG_INTERVAL_S", 0.0)
    monkeypatch.setattr(value_log, "CHECK_RECORDS", 1)
    caplog.set_level("INFO")
    recovered_from(without_index(tmp_path / "a", tmp_path / "b"))
    lines = [record.getMessage() for record in caplog.records if "reading the value log" in record.getMessage()]
    assert ["percent=25" in lines[0], "percent=100" in lines[-1], len(lines)] == [True, True, 4], lines
