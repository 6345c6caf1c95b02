"""Garbage collection: correctness rule 20 and the pointers that cross files."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from binlog.cluster.registry import ROOT, NodeStatus, Registry, State
from binlog.cluster.tso import compose
from binlog.errors import BinlogError

from pump.log.record import Pointer
from pump.store.recovery import SLACK_MS
from pump.store.store import Store
from pump.tasks.gc import GarbageCollector, purge_point
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pump.build import SetClock, binlogs_of, commit, copy_running, merged, opened, prewrite, rollback
from tests.unit.pump.store.test_damage import damage

DAY = timedelta(days=1)


def drainer(state: State, ts: int) -> NodeStatus:
    return NodeStatus("d", "h:1", state, max_commit_ts=ts)


def test_purge_point_is_retention_age_limited_by_resolved_ts() -> None:
    now_ms = 10 * 86_400_000
    assert purge_point([], now_ms=now_ms, retention=DAY, resolved_ts=1 << 62) == compose(9 * 86_400_000)
    assert purge_point([], now_ms=now_ms, retention=DAY, resolved_ts=5) == 5, "pending prewrites and later stay"


def test_rule_20_purge_point_never_passes_online_or_paused_drainers() -> None:
    """Paused ones count; offline ones do not."""
    now_ms = 10 * 86_400_000
    drainers = [drainer(State.ONLINE, 1000), drainer(State.PAUSED, 900), drainer(State.OFFLINE, 1)]
    assert purge_point(drainers, now_ms=now_ms, retention=DAY, resolved_ts=1 << 62) == 900


def collector(store: Store, registry: Registry) -> GarbageCollector:
    """Of a store whose source of timestamps counts from 1: its clock is years behind."""
    return GarbageCollector(store, registry, DAY, clock_ms=lambda: time.time_ns() // 1_000_000)


async def test_gc_removes_nothing_after_system_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No drainer is registered, so age alone decides, and the timestamp source says what time it is."""
    clock_ms = time.time_ns() // 1_000_000
    start_ts, commit_ts = compose(clock_ms - 1000), compose(clock_ms - 999)
    async with opened(tmp_path, SetClock(compose(clock_ms))) as store:
        await store.writes.write([prewrite(start_ts), commit(start_ts, commit_ts)])
        await store.resolver.refresh()
        monkeypatch.setattr(time, "time", lambda: clock_ms / 1000 + 30 * 86_400)
        await GarbageCollector(store, Registry(MemoryEtcd()), DAY).collect()
        assert store.reads.purged_ts < start_ts
        monkeypatch.setattr(time, "time", lambda: clock_ms / 1000 - 30 * 86_400)
        await GarbageCollector(store, Registry(MemoryEtcd()), DAY).collect()
        assert store.reads.purged_ts < start_ts


async def test_rule_20_gc_fails_while_a_drainer_record_is_unreadable(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    registry = Registry(etcd)
    async with opened(tmp_path, SetClock(1)) as store:
        assert await store.writes.write([prewrite(10), commit(10, 20)]) == [None, None]
        store.resolver.advance(30)
        await etcd.put(f"{ROOT}/drainers/d", b"{")
        with pytest.raises(BinlogError, match="drainers/d"):
            await collector(store, registry).collect()
        assert store.reads.purged_ts == 0
        await etcd.delete(f"{ROOT}/drainers/d")
        assert await collector(store, registry).collect() == 30


async def test_gc_removes_files_that_no_commit_or_drainer_needs(tmp_path: Path) -> None:
    """A file whose prewrite is committed from a later one stays until that commit may go."""
    passed, late, all_ = (compose(SLACK_MS + ms) for ms in (10, 20, SLACK_MS + 30))
    registry = Registry(MemoryEtcd())
    async with opened(tmp_path, SetClock(1), file_bytes_max=1, ts_ahead_max_s=0) as store:
        for payload in (prewrite(10), prewrite(20), commit(20, 30), commit(10, late)):
            assert await store.writes.write([payload]) == [None]
        store.resolver.advance(all_)
        await registry.create("drainers", drainer(State.ONLINE, passed))
        collecting = collector(store, registry)
        assert await collecting.collect() == passed
        assert store.reads.purged_ts == passed
        assert [file.fid for file in store.log.files()] == [0, 3, 4]
        assert await binlogs_of(store, passed) == [merged(10, late)]
        assert store.index.pointer(20) is None
        record = await registry.get("drainers", "d")
        assert record is not None
        await registry.update("drainers", drainer(State.ONLINE, all_), mod_revision=record.mod_revision)
        await collecting.collect()
        assert [file.fid for file in store.log.files()] == [4]
    async with opened(tmp_path, SetClock(1)) as store:
        assert store.reads.purged_ts == all_
        assert store.damage == []
        assert len(store.pending) == 0


async def test_a_file_stays_for_the_largest_commit_that_needs_it(tmp_path: Path) -> None:
    """Commits are stored in any order: an older one that comes later does not let the file go."""
    passed, late, all_ = (compose(SLACK_MS + ms) for ms in (10, SLACK_MS + 20, SLACK_MS + 30))
    registry = Registry(MemoryEtcd())
    await registry.create("drainers", drainer(State.ONLINE, passed))
    size = len(prewrite(10)) + len(prewrite(20))
    async with opened(tmp_path, SetClock(1), file_bytes_max=size, ts_ahead_max_s=0) as store:
        assert await store.writes.write([prewrite(10), prewrite(20)]) == [None, None]
        assert await store.writes.write([commit(10, late)]) == [None]
        assert await store.writes.write([commit(20, 30)]) == [None]
        assert [file.fid for file in store.log.files()][:2] == [0, 1]
        store.resolver.advance(all_)
        await collector(store, registry).collect()
        assert await binlogs_of(store, passed) == [merged(10, late)]
    shutil.rmtree(tmp_path / "kv")
    async with opened(tmp_path, SetClock(1), file_bytes_max=size, ts_ahead_max_s=0) as store:
        assert store.index.needs()[0] == late, "also in an index that was made anew"


async def test_purge_point_never_goes_back(tmp_path: Path) -> None:
    registry = Registry(MemoryEtcd())
    async with opened(tmp_path, SetClock(1)) as store:
        store.index.save_purged(50)
        assert await collector(store, registry).collect() == 50


async def test_prewrite_ended_before_purge_is_not_pending_in_rebuilt_index(tmp_path: Path) -> None:
    """The rollback of `old` went with its file, the prewrite's file stays. A commit that comes for one that was taken
    as ended is served all the same."""
    old, slow, point, young, all_ = (compose(ms) for ms in (10, 12, 2 * SLACK_MS, 3 * SLACK_MS, 4 * SLACK_MS))
    registry = Registry(MemoryEtcd())
    await registry.create("drainers", drainer(State.ONLINE, point))
    size = 2 * len(prewrite(old))
    async with opened(tmp_path, SetClock(1), file_bytes_max=size, ts_ahead_max_s=0) as store:
        assert await store.writes.write([prewrite(old), prewrite(young)]) == [None, None]
        assert await store.writes.write([rollback(old), rollback(old + 1), rollback(old + 2)]) == [None] * 3
        assert await store.writes.write([commit(young, young + 5)]) == [None]
        store.resolver.advance(all_)
        assert await collector(store, registry).collect() == point
        assert (store.log.has(0), store.log.has(1)) == (True, False)
        assert await store.writes.write([prewrite(slow), prewrite(all_ + 1)]) == [None, None]
    async with opened(tmp_path, SetClock(all_ + 2), ts_ahead_max_s=0) as store:
        assert [entry.start_ts for entry in store.pending.first(9)] == [slow, all_ + 1], "its index knows them"
    shutil.rmtree(tmp_path / "kv")
    copy = tmp_path.with_name("copy")
    for _ in range(2):
        async with opened(tmp_path, SetClock(all_ + 2), ts_ahead_max_s=0) as store:
            pending = [entry.start_ts for entry in store.pending.first(9)]
            assert old not in pending
            assert all_ + 1 in pending
            shutil.rmtree(copy, ignore_errors=True)
            copy_running(tmp_path, copy)
    async with opened(tmp_path, SetClock(all_ + 2), ts_ahead_max_s=0) as store:
        assert await store.writes.write([prewrite(old + 9)]) == [None]
    async with opened(tmp_path, SetClock(all_ + 2), ts_ahead_max_s=0) as store:
        assert old + 9 in store.pending, "it came after the log was read as a whole"
    async with opened(copy, SetClock(all_ + 9), ts_ahead_max_s=0) as store:
        assert await store.writes.write([commit(slow, all_ + 8), commit(all_ + 1, all_ + 9)]) == [None, None]
        store.resolver.advance(all_ + 20)
        assert await binlogs_of(store, all_) == [merged(slow, all_ + 8), merged(all_ + 1, all_ + 9)]


async def test_damage_of_deleted_file_is_no_longer_reported(tmp_path: Path) -> None:
    """A commit without a prewrite, of another pump's transaction, is not taken for one that was lost there."""
    async with opened(tmp_path, SetClock(1), file_bytes_max=1, ts_ahead_max_s=0) as store:
        for payload in (prewrite(10), commit(10, 20), prewrite(30), commit(30, 40)):
            assert await store.writes.write([payload]) == [None]
    damage(tmp_path, prewrite(10))
    shutil.rmtree(tmp_path / "kv")
    point = compose(SLACK_MS + 1)
    registry = Registry(MemoryEtcd())
    await registry.create("drainers", drainer(State.ONLINE, point))
    async with opened(tmp_path, SetClock(1), file_bytes_max=1, ts_ahead_max_s=0) as store:
        assert len(store.index.damages()) == 1
        store.resolver.advance(point + 100)
        await collector(store, registry).collect()
        assert not store.log.has(0)
        batch = store.index.batch()
        batch.damage(Pointer(0, 0), 9)  # as it is until the collector comes to its key
        store.index.write(batch)
        assert await store.writes.write([commit(point + 1, point + 102), prewrite(point + 101)]) == [None, None]
        assert await store.writes.write([commit(point + 101, point + 103)]) == [None]
        store.resolver.advance(point + 200)
        assert await binlogs_of(store, point) == [merged(point + 101, point + 103)]


async def test_cancelled_gc_ends_its_thread_before_index_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LevelDB crashes the process where it is closed under a thread that scans it."""
    removing, go_on, batches = threading.Event(), threading.Event(), []

    def delete_until(prefix: bytes, _ts: int) -> Iterator[int]:
        for _ in range(3):
            batches.append(prefix)
            removing.set()
            assert go_on.wait(60)
            yield 1

    async with opened(tmp_path, SetClock(1)) as store:
        monkeypatch.setattr(store.index, "delete_until", delete_until)
        collecting = asyncio.create_task(collector(store, Registry(MemoryEtcd())).collect())
        assert await asyncio.to_thread(removing.wait, 60)
        collecting.cancel()
        done, _ = await asyncio.wait({collecting}, timeout=0.1)
        go_on.set()
        assert not done, "its thread is at work"
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(collecting, 60)
        assert len(batches) == 1, "no other batch was begun"
