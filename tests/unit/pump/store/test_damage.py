"""Damaged bytes of the value log: whatever they held is served, or a pull that comes to it fails. Never silence."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path

import plyvel
import pytest
from binlog.errors import BinlogError
from binlog.runtime import metrics

from pump.errors import DamagedRecord
from pump.index import checkpoint, keys
from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import Head, ValueLog
from pump.store.store import Store
from tests.unit.pump.build import (
    SetClock,
    appended,
    binlogs_of,
    commit,
    copy_running,
    encode_record,
    merged,
    opened,
    power_cut,
    prewrite,
    write,
)

FAR = 1 << 40
HEADER_BYTES = 16


def damage(directory: Path, payload: bytes) -> int:
    """Turn one bit of this record's payload; where the record begins."""
    path = directory / "value" / "000000.vlog"
    data = bytearray(path.read_bytes())
    at = data.index(encode_record(payload))
    data[at + HEADER_BYTES] ^= 1
    path.write_bytes(data)
    return at


def prewrites_not_found() -> float:
    """The counter under upstream's name."""
    (found,) = re.findall(r'error_count{type="feed_pre_write_value"} (\S+)', metrics.render().decode())
    return float(found)


async def left_behind(
    tmp_path: Path, *before: bytes, indexed: tuple[bytes, ...] = (), after: tuple[bytes, ...]
) -> Path:
    """A store after a power cut: `before` lies behind a checkpoint, `indexed` is in the index, `after` in the log
    alone."""
    here = tmp_path / "killed"
    async with opened(tmp_path / "a", SetClock(1)) as store:
        await write(store, *before)
    async with opened(tmp_path / "a", SetClock(1)) as store:
        if indexed:
            await write(store, *indexed)
        copy_running(tmp_path / "a", here)
    with (here / "value" / "000000.vlog").open("ab") as log:
        for payload in after:
            log.write(encode_record(payload))
    power_cut(here)
    return here


async def all_but(store: Store, ts: int, place: str, *, wanted: list[bytes]) -> None:
    """Everything but the commit at `ts` is served; a pull that comes to it names the place."""
    store.resolver.ts = FAR
    with pytest.raises(DamagedRecord, match=place):
        await binlogs_of(store)
    assert await binlogs_of(store, 0, ts - 1) + await binlogs_of(store, ts, FAR) == wanted


@pytest.mark.parametrize("index_is_there", [True, False])
async def test_records_inside_a_row_whose_append_was_cut_off_are_not_served(
    tmp_path: Path, index_is_there: bool
) -> None:
    """Anybody may INSERT such bytes, and a kill in the middle of the append leaves the record's beginning."""
    blob = b"".join(map(encode_record, (prewrite(50), commit(50, 60), prewrite(70), commit(70, 80)))) + bytes(100)
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30, row=blob),))
    path = here / "value" / "000000.vlog"
    path.write_bytes(path.read_bytes()[:-100])
    if not index_is_there:
        shutil.rmtree(here / "kv")
    async with opened(here, SetClock(FAR)) as store:
        assert await binlogs_of(store, 0, FAR) == [merged(10, 20)]
        assert (len(store.pending), store.damage) == (0, [])


@pytest.mark.parametrize("boot", ["same", "other", "unknown"])
async def test_what_follows_a_broken_record_was_not_acknowledged_if_the_machine_ran_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    """Its header does not say where it was to end, and what is searched then includes its row. Whole records before it
    are kept."""
    if boot == "unknown":
        monkeypatch.setattr(checkpoint, "BOOT_FILE", tmp_path / "none")
    blob = encode_record(prewrite(50)) + encode_record(commit(50, 60))
    async with opened(tmp_path / "a", SetClock(1)) as store:
        await write(store, prewrite(10), commit(10, 20))
        copy_running(tmp_path / "a", tmp_path / "b")
    if boot == "other":
        power_cut(tmp_path / "b")
    path = tmp_path / "b" / "value" / "000000.vlog"
    whole = path.read_bytes() + encode_record(prewrite(30))
    path.write_bytes(whole + b"\0" + encode_record(prewrite(40, row=blob))[1:])
    async with opened(tmp_path / "b", SetClock(FAR)) as store:
        store.resolver.ts = FAR
        found = await binlogs_of(store), [entry.start_ts for entry in store.pending.first(9)], len(store.damage)
    searched = [merged(10, 20), merged(50, 60)], [30], 1
    assert found == (([merged(10, 20)], [30], 0) if boot == "same" else searched)
    assert (path.read_bytes() == whole) == (boot == "same")


async def test_an_index_that_lacks_writes_proves_nothing(tmp_path: Path) -> None:
    """A page of LevelDB's log is damaged, or the original pump wrote last: it acknowledges before it indexes."""
    async with opened(tmp_path / "a", SetClock(1)) as store:
        assert store.checkpoints.index_is_complete()
        for ts in range(100, 2000, 10):
            await write(store, prewrite(ts), commit(ts, ts + 5))
        for name in ("b", "c"):
            copy_running(tmp_path / "a", tmp_path / name)
    (path,) = (tmp_path / "b" / "kv").glob("*.log")
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    with plyvel.DB(str(tmp_path / "c" / "kv")) as db:
        db.put(keys.HEAD, Pointer(0, 0).encode())
    for name in ("b", "c"):
        with closing(Index(tmp_path / name / "kv")) as index:
            found = checkpoint.Checkpoints(tmp_path / name, index)
            assert found.trusted() is not None
            assert not found.index_is_complete()


async def test_damaged_unindexed_prewrite_with_intact_commit_fails_every_pull(tmp_path: Path) -> None:
    """FORMAT.md, recovery 4: the pull fails, now and after every later start; for others it is no evidence."""
    here = await left_behind(
        tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30), commit(30, 40), prewrite(50), commit(50, 60))
    )
    at = damage(here, prewrite(30))
    for _ in range(3):
        async with opened(here, SetClock(FAR)) as store:
            assert [each.offset for each in store.damage] == [at]
            assert store.reads.outcome(30) == 0
            counted = prewrites_not_found()
            await all_but(store, 40, f"000000.vlog at byte {at}", wanted=[merged(10, 20), merged(50, 60)])
            assert prewrites_not_found() == counted + 1


async def test_damaged_indexed_prewrite_with_unindexed_commit_fails_every_pull(tmp_path: Path) -> None:
    here = await left_behind(
        tmp_path,
        prewrite(10),
        indexed=(prewrite(30),),
        after=(commit(30, 40), commit(10, 20)),
    )
    at = damage(here, prewrite(30))
    for _ in range(2):
        async with opened(here, SetClock(FAR)) as store:
            assert len(store.pending) == 0
            assert store.reads.outcome(30) == 0
            await all_but(store, 40, f"byte {at}", wanted=[merged(10, 20)])


async def test_a_damaged_prewrite_that_the_index_knows_stays_pending(tmp_path: Path) -> None:
    """Its commit comes after the restart, and must not come below a resolved ts."""
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), indexed=(prewrite(30),), after=(prewrite(50),))
    at = damage(here, prewrite(30))
    for _ in range(2):
        async with opened(here, SetClock(FAR)) as store:
            assert [entry.start_ts for entry in store.pending.first(9)] == [30, 50]
            assert store.resolved_ts == 29
    shutil.copytree(here, tmp_path / "committed")
    async with opened(tmp_path / "committed", SetClock(FAR)) as store:
        await write(store, commit(30, 40), commit(50, 60))
        assert store.writes.late_commits == 0
        await all_but(store, 40, f"byte {at}", wanted=[merged(10, 20), merged(50, 60)])
    async with opened(here, SetClock(FAR)) as store:
        await store.writes.settle(30, 0)
        await write(store, commit(50, 60))
        store.resolver.ts = FAR
        assert await binlogs_of(store) == [merged(10, 20), merged(50, 60)], "an operator may say that it is nothing"


@pytest.mark.parametrize("starts", [1, 3])
async def test_commit_of_damaged_unindexed_prewrite_fails_pull_and_counts_as_late(tmp_path: Path, starts: int) -> None:
    """Nobody knows of which ts the damaged bytes were, so a commit without a prewrite is taken for one of them."""
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30), prewrite(50), commit(50, 60)))
    at = damage(here, prewrite(30))
    for _ in range(starts - 1):
        async with opened(here, SetClock(2)) as store:
            assert len(store.damage) == 1
    async with opened(here, SetClock(FAR)) as store:
        assert [each.offset for each in store.damage] == [at]
        await write(store, commit(30, 40))
        assert list(store.writes.late_ts) == [40], "it was passed already: an alarm"
        await all_but(store, 40, f"byte {at}", wanted=[merged(10, 20), merged(50, 60)])


async def test_repeated_prewrite_replaces_damaged_one(tmp_path: Path) -> None:
    """A client repeats what was not answered; also in a log that is read again."""
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30), commit(30, 40)))
    damage(here, prewrite(30))
    async with opened(here, SetClock(FAR)) as store:
        await write(store, prewrite(30))
        store.resolver.ts = FAR
        assert await binlogs_of(store) == [merged(10, 20), merged(30, 40)]
        copy_running(here, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "kv")
    async with opened(tmp_path / "again", SetClock(FAR)) as store:
        store.resolver.ts = FAR
        assert await binlogs_of(store) == [merged(10, 20), merged(30, 40)]


async def test_repeated_prewrite_that_was_not_indexed_replaces_damaged_one(tmp_path: Path) -> None:
    """Killed between the log and the index, which knows the commit as one whose prewrite is lost."""
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30), commit(30, 40)))
    damage(here, prewrite(30))
    async with opened(here, SetClock(FAR)) as store:
        store.resolver.ts = FAR
        with pytest.raises(DamagedRecord):
            await binlogs_of(store)
    with (here / "value" / "000000.vlog").open("ab") as log:
        log.write(encode_record(prewrite(30)))
    async with opened(here, SetClock(FAR)) as store:
        store.resolver.ts = FAR
        assert await binlogs_of(store) == [merged(10, 20), merged(30, 40)]


async def test_commit_without_prewrite_in_undamaged_log_is_not_served(tmp_path: Path) -> None:
    """P-PULL-03: it is some other pump's, or its prewrite is on its way."""
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(commit(30, 40),))
    async with opened(here, SetClock(FAR)) as store:
        await write(store, commit(50, 60))
        store.resolver.ts = FAR
        assert await binlogs_of(store) == [merged(10, 20)]
        assert store.reads.outcome(50) == 0


async def test_damage_is_forgotten_when_its_file_is_deleted(tmp_path: Path) -> None:
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30), prewrite(50)))
    at = damage(here, prewrite(30))
    async with opened(here, SetClock(FAR)) as store:
        assert [pointer for pointer, _ in store.index.damages()] == [Pointer(0, at)]
        store.index.delete_file(1)
        assert len(store.index.damages()) == 1
        copy_running(here, tmp_path / "gone")
        store.index.delete_file(0)
        assert store.index.damages() == []
    (tmp_path / "gone" / "value" / "000000.vlog").rename(tmp_path / "gone" / "value" / "000001.vlog")
    async with opened(tmp_path / "gone", SetClock(FAR)) as store:
        assert not any("earlier start" in str(each) for each in store.damage), "the file is gone, its key was not yet"


def test_value_log_open_syncs_records_before_it_trusts_them(tmp_path: Path) -> None:
    """A process that died before its sync leaves records in the page cache, and repetitions are answered by them."""
    log = ValueLog(tmp_path)
    log.open()
    first, second = appended(log, [prewrite(1), prewrite(2)], 2)
    log.close()
    data = (tmp_path / "000000.vlog").read_bytes()
    synced: list[int] = []
    again = ValueLog(tmp_path, sync=synced.append)
    again.open(Head(first, second.offset, 1))
    assert len(synced) == 1
    assert (tmp_path / "000000.vlog").read_bytes() == data

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(BinlogError, match=r"000000\.vlog cannot be synced"):
        ValueLog(tmp_path, sync=fail).open()


async def test_a_damaged_prewrite_below_the_resolved_ts_stays_pending(tmp_path: Path) -> None:
    """Its ts was fetched before the resolved ts that was given out, and it came after: its commit is above that."""
    async with opened(tmp_path / "a", SetClock(1)) as store:
        await write(store, prewrite(10), commit(10, 20))
    here = tmp_path / "killed"
    async with opened(tmp_path / "a", SetClock(100)) as store:
        assert store.resolved_ts > 50
        await write(store, prewrite(50))
        await write(store, prewrite(200), commit(200, 201))
        copy_running(tmp_path / "a", here)
    at = damage(here, prewrite(50))
    with plyvel.DB(str(here / "kv")) as index:
        index.put(keys.MAX_COMMIT, keys.encode_number(102))  # as progress saves it once a second
    async with opened(here, SetClock(300)) as store:
        assert [entry.start_ts for entry in store.pending.first(9)] == [50]
        assert store.resolved_ts == 102
        await write(store, commit(50, 250))
        assert store.writes.late_commits == 0
        await all_but(store, 250, f"byte {at}", wanted=[merged(10, 20), merged(200, 201)])
