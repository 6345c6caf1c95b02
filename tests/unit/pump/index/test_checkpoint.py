"""What recovery trusts was synced (correctness rule 25): any page of the index's files may be lost, in any order."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import plyvel
import pytest
from binlog.errors import PurgedPosition

from pump.index.checkpoint import (
    FILE_BYTES,
    FILE_NAME,
    Checkpoint,
    Checkpoints,
    decode_checkpoint,
    encode_checkpoint,
)
from pump.index.leveldb import Index, IndexFailed, unbroken
from pump.log.record import Pointer
from pump.log.value_log import Head
from pump.store.store import Store
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
    write,
)

PAGE_BYTES = 4096
TRANSACTIONS = 240
FAR = 1 << 40

Damage = Callable[[bytes, int, int], bytes]  # a file, where, how many bytes


def zeroed(data: bytes, at: int, size: int) -> bytes:
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


def cut(data: bytes, at: int, _size: int) -> bytes:
    return data[:at]


def flipped(data: bytes, at: int, _size: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def ts_of(number: int) -> tuple[int, int]:
    return 1000 + number * 10, 1005 + number * 10


WANTED = [merged(*ts_of(number)) for number in range(TRANSACTIONS) if number % 40 not in (7, 9, 11, 13)]
PENDING = [ts_of(number)[0] for number in range(TRANSACTIONS) if number % 40 == 7]
ROLLED_BACK = [ts_of(number)[0] for number in range(TRANSACTIONS) if number % 40 in (9, 11)]


async def check(directory: Path) -> None:
    async with opened(directory, SetClock(FAR)) as store:
        assert store.damage == []
        assert [entry.start_ts for entry in store.pending.first(999)] == PENDING
        assert [store.index.outcome(ts) for ts in ROLLED_BACK] == [0] * len(ROLLED_BACK)
        store.resolver.ts = FAR
        assert await binlogs_of(store) == WANTED


async def live_copy(tmp_path: Path, *, checkpoints: int, lives: int = 1) -> Path:
    """A copy of a store that is running: the index's log is not flushed, and after `checkpoints` tables were."""
    source, copy = tmp_path / "live", tmp_path / "copy"
    for _ in range(lives - 1):
        async with opened(source, SetClock(1)):
            pass
    size = sum(len(encode_record(payload)) for payload in (prewrite(1000), commit(1000, 1005)))
    async with opened(source, SetClock(1), checkpoint_bytes=1 << 40) as store:
        for number in range(TRANSACTIONS):
            if number and number % (TRANSACTIONS // (checkpoints + 1)) == 0:
                head = store.index.own_head()
                assert head is not None
                pending = store.index.pointer(PENDING[0])
                store.checkpoints.save(head, min(head.pointer, pending or head.pointer))
            await fill_one(store, number)
        assert store.log.size > TRANSACTIONS // 2 * size
        copy_running(source, copy)
    return copy


async def fill_one(store: Store, number: int) -> None:
    """A transaction, or now and then a prewrite that stays pending, a rolled back one, a tombstone, a fake."""
    start_ts, commit_ts = ts_of(number)
    kind = number % 40
    if kind == 7:
        await write(store, prewrite(start_ts))
    elif kind == 9:
        await write(store, prewrite(start_ts), rollback(start_ts))
    elif kind == 11:
        await write(store, rollback(start_ts))
    elif kind == 13:
        await write(store, encode_fake(start_ts))
    else:
        await write(store, prewrite(start_ts), commit(start_ts, commit_ts))


def damaged(source: Path, target: Path, pattern: str, damage: Damage, step: int) -> Iterator[Path]:
    """Copies of `source`, in each one stretch of one file of the index damaged."""
    for path in sorted((source / "kv").glob(pattern)):
        data = path.read_bytes()
        for at in range(0, len(data), step):
            shutil.copytree(source, target)
            (target / "kv" / path.name).write_bytes(damage(data, at, step))
            yield target
            shutil.rmtree(target)


@pytest.mark.parametrize(("damage", "checkpoints"), [(zeroed, 0), (zeroed, 3), (cut, 3), (flipped, 0)])
async def test_rule_25_every_binlog_is_served_after_loss_of_an_index_log_page(
    tmp_path: Path, damage: Damage, checkpoints: int
) -> None:
    """LevelDB steps over the gap and has a newer head than what it lost: everything in the value log is served."""
    copy = await live_copy(tmp_path, checkpoints=checkpoints)
    count = 0
    for here in damaged(copy, tmp_path / "damaged", "*.log", damage, PAGE_BYTES):
        await check(here)
        count += 1
    assert count >= (2 if checkpoints else 12)


@pytest.mark.parametrize(("damage", "checkpoints"), [(zeroed, 3), (cut, 3), (flipped, 3), (cut, 9)])
async def test_rule_25_index_serves_all_or_does_not_open_after_loss_in_manifest(
    tmp_path: Path, damage: Damage, checkpoints: int
) -> None:
    """Everything is served, or the index does not open, and its error says how to make it anew, which works."""
    copy = await live_copy(tmp_path, checkpoints=checkpoints)
    served = refused = 0
    for here in damaged(copy, tmp_path / "damaged", "MANIFEST-*", damage, 48):
        try:
            await check(here)
            served += 1
        except IndexFailed as error:
            assert "move the directory away" in str(error)
            shutil.rmtree(here / "kv")
            await check(here)
            refused += 1
    assert refused >= 1
    assert served >= 3 or (damage, checkpoints) != (cut, 3)  # what else LevelDB itself misses, or sees


async def test_rule_25_all_binlogs_are_served_after_gap_in_long_manifest(tmp_path: Path) -> None:
    """A block of it is lost and those behind it are there: the newest table is known, and older ones are not. LevelDB
    opens, and says nothing."""
    copy = await live_copy(tmp_path, checkpoints=3)
    (manifest,) = (copy / "kv").glob("MANIFEST-*")
    data = manifest.read_bytes()
    records = list(manifest_records(data))
    flushes = [record for record in records if len(record) > 40]
    assert len(flushes) >= 3, "one for each checkpoint"
    lost = flushes[1]
    at = data.index(lost)
    second_block = data[at + len(lost) :]
    gap = data[:at] + bytes((32 << 10) - at) + second_block
    assert not unbroken(gap)
    manifest.write_bytes(gap)
    await check(copy)


@pytest.mark.parametrize("what", ["checkpoint", "kv", "CURRENT", "both"])
async def test_recovery_reads_whole_log_if_checkpoint_or_index_files_are_missing(tmp_path: Path, what: str) -> None:
    """Without the checkpoint nothing is proved, without the index nothing is there: the whole log is read."""
    copy = await live_copy(tmp_path, checkpoints=3)
    if what in ("checkpoint", "both"):
        (copy / FILE_NAME).unlink()
    if what in ("kv", "both"):
        shutil.rmtree(copy / "kv")
    if what == "CURRENT":
        (copy / "kv" / "CURRENT").unlink()
    await check(copy)


async def test_decode_checkpoint_rejects_damage_at_every_byte(tmp_path: Path) -> None:
    """Nothing that is not a checkpoint is taken for one."""
    found = Checkpoint(7, 99, Head(Pointer(3, 500), 700, 1234), Pointer(2, 16), b"boot" * 4)
    data = encode_checkpoint(found)
    assert len(data) == FILE_BYTES
    assert decode_checkpoint(data) == found
    assert decode_checkpoint(encode_checkpoint(found._replace(head=None))) == found._replace(head=None)
    for at in range(len(data)):
        assert decode_checkpoint(flipped(data, at, 1)) is None
        assert decode_checkpoint(data[:at]) is None
    assert decode_checkpoint(data + b"\0") is None


async def test_start_after_clean_stop_reads_only_behind_checkpoint(tmp_path: Path) -> None:
    """After a clean stop nothing is read again but the last record and what is pending."""
    async with opened(tmp_path, SetClock(1)) as store:
        for number in range(100):
            await write(store, prewrite(1000 + number * 10), commit(1000 + number * 10, 1005 + number * 10))
    async with opened(tmp_path, SetClock(FAR)) as store:
        trusted = store.checkpoints.trusted()
        assert trusted is not None
        assert trusted.head == store.index.own_head()
        assert trusted.start == trusted.head.pointer  # type: ignore[union-attr]


async def test_checkpoints_are_written_every_checkpoint_bytes_of_log(tmp_path: Path) -> None:
    """Without a stop, too: what a crash makes a start read again is bounded."""
    async with opened(tmp_path, SetClock(1), checkpoint_bytes=1000, progress_interval_s=0.0) as store:
        wanted = store.checkpoints._last.number + 3
        number = 0
        async with asyncio.timeout(60):
            while store.checkpoints._last.number < wanted:
                await write(store, prewrite(1000 + number * 10), commit(1000 + number * 10, 1005 + number * 10))
                number += 1
        assert number >= 3 * 1000 // len(encode_record(prewrite(1000)) + encode_record(commit(1000, 1005))) - 3
        head = store.checkpoints._last.head
        assert head is not None and head.end > 2000


async def test_purge_point_survives_loss_of_index(tmp_path: Path) -> None:
    """It is in the checkpoint too: an index made anew must not serve what is left as if it were whole."""
    async with opened(tmp_path / "a", SetClock(1)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30), commit(30, 40))
        store.checkpoints.purge(25)
        copy_running(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "kv")
    async with opened(tmp_path / "b", SetClock(FAR)) as store:
        assert store.reads.purged_ts == 25
        store.resolver.ts = FAR
        with pytest.raises(PurgedPosition):
            await binlogs_of(store)
        assert await binlogs_of(store, 25) == [merged(30, 40)]


async def test_failed_checkpoint_write_breaks_log(tmp_path: Path) -> None:
    """A checkpoint that is not on the disk must not be believed, and LevelDB that failed takes nothing more."""
    async with opened(tmp_path, SetClock(1)) as store:
        await write(store, prewrite(10))
        (tmp_path / "checkpoint.new").mkdir()
    assert "cannot save" in (store.log.broken or "")  # the stop saves a checkpoint


async def test_damaged_acknowledged_end_of_log_is_reported_and_not_cut_off(tmp_path: Path) -> None:
    """Bytes that the index knows as records are never cut off, and nothing is written in their place."""
    async with opened(tmp_path / "a", SetClock(1)) as store:
        await write(store, prewrite(10), commit(10, 20))
        copy_running(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b" / "value" / "000000.vlog"
    data = path.read_bytes()
    at = len(encode_record(prewrite(10)))
    path.write_bytes(flipped(data, len(data) - 1, 1))
    async with opened(tmp_path / "b", SetClock(FAR)) as store:
        assert [each.offset for each in store.damage] == [at]
        await write(store, prewrite(50))
        pointer = store.index.pointer(50)
        assert pointer is not None and pointer.offset == len(data)


def manifest_records(data: bytes) -> Iterator[bytes]:
    """Header and data of each record of a manifest of one block."""
    at = 0
    while at + 7 <= len(data):
        past = at + 7 + int.from_bytes(data[at + 4 : at + 6], "little")
        yield data[at:past]
        at = past


def manifest_of(tmp_path: Path) -> bytes:
    with plyvel.DB(str(tmp_path / "db"), create_if_missing=True) as db:
        for number in range(6):
            db.put(b"k%d" % number, os.urandom(20))
            db.compact_range(start=b"\xff", stop=b"\xff")
        (path,) = (tmp_path / "db").glob("MANIFEST-*")
        return path.read_bytes()


def test_manifest_is_unbroken_at_any_cut_and_broken_by_gap_before_whole_record(tmp_path: Path) -> None:
    """A torn end is what a crash leaves; anything whole behind something that is not is a gap."""
    data = manifest_of(tmp_path)
    assert all(unbroken(data[:at]) for at in range(len(data) + 1))
    last = list(manifest_records(data))[-1]
    for at in range(len(data) - len(last)):
        assert not unbroken(flipped(data, at, 1) + bytes((32 << 10) - len(data)) + last), at


def test_index_flush_leaves_nothing_only_in_leveldb_log(tmp_path: Path) -> None:
    """Checkpoints rest on it: after `Index.flush` the tables have everything, without the log."""
    index = Index(tmp_path / "kv")
    batch = index.batch()
    batch.pointer(5, Pointer(1, 2))
    index.write(batch)
    index.flush(3)
    copy_running(tmp_path / "kv", tmp_path / "copy")
    index.close()
    for path in (tmp_path / "copy").glob("*.log"):
        path.write_bytes(b"")
    again = Index(tmp_path / "copy")
    assert again.pointer(5) == Pointer(1, 2)
    assert again.check() == 3
    assert Checkpoints(tmp_path, again).trusted() is not None
    again.close()


def test_index_flush_fails_if_no_new_log_file_can_be_created(tmp_path: Path) -> None:
    """LevelDB drops that error, and takes the next write: a checkpoint would name what lies in its log alone."""
    index = Index(tmp_path / "kv")
    index.flush(1)
    (tmp_path / "kv").rename(tmp_path / "away")
    with pytest.raises(IndexFailed, match="there is no new file"):
        index.flush(2)
    (tmp_path / "away").rename(tmp_path / "kv")
    index.flush(3)
    index.close()


def test_index_flush_fails_if_no_table_can_be_written(tmp_path: Path) -> None:
    """LevelDB tells of it at the next write only."""
    index = Index(tmp_path / "kv")
    index.flush(1)
    newest = max(int(path.stem) for path in (tmp_path / "kv").iterdir() if path.stem.isdecimal())
    for number in range(newest + 1, newest + 20):  # no table can be made under these names
        (tmp_path / "kv" / f"{number:06d}.ldb").mkdir()
    with pytest.raises(IndexFailed, match="does not take a flush"):
        index.flush(2)
    index.close()
