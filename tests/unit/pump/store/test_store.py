"""A store as a whole: what it serves and in which order, repetition, pulls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from binlog.envelope import encode_binlog
from binlog.errors import TimestampUnavailable
from binlog.pb.pump_ext_pb2 import WatermarkReq, WatermarkResp

from pump.errors import NotResolved
from tests.unit.pump.build import (
    SetClock,
    binlogs_of,
    commit,
    encode_record,
    merged,
    opened,
    prewrite,
    rollback,
    write,
)


@pytest.mark.parametrize(
    ("steps", "served"),
    [
        ([prewrite(1), commit(1, 2)], [2]),
        ([prewrite(1), prewrite(2), commit(2, 3), commit(1, 10)], [3, 10]),
        ([prewrite(1), prewrite(2), commit(1, 10), commit(2, 9)], [9, 10]),
        ([prewrite(1), prewrite(2), commit(1, 10), commit(2, 9), prewrite(20), commit(20, 200)], [9, 10, 200]),
        ([prewrite(1), rollback(1), prewrite(2), commit(2, 3)], [3]),
    ],
)
async def test_pull_serves_sorter_test_sequences_of_original_in_order(
    tmp_path: Path, steps: list[bytes], served: list[int]
) -> None:
    """Upstream's TestSorter; where its sorter drops 9 behind 10, the resolved ts waits and serves both in order."""
    async with opened(tmp_path, SetClock(1000)) as store:
        for step in steps:
            await write(store, step)
        await store.resolver.refresh()
        got = [s.commit_ts async for c in store.reads.pull(0, store.resolved_ts, bytes_max=100) for s in c]
        assert got == served


async def test_resolved_ts_waits_for_oldest_pending_prewrite(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(90), prewrite(95), commit(95, 99))
        assert await store.resolver.refresh() == 101
        await write(store, prewrite(102))
        assert await store.resolver.refresh() == 101
        await write(store, commit(102, 104), commit(90, 105))
        assert await store.resolver.refresh() > 101


async def test_unusual_field_order_is_merged_to_same_binlog(tmp_path: Path) -> None:
    """protobuf allows any order; what is served is the same binlog."""
    odd = encode_binlog(tp=0, start_ts=10, prewrite_key=b"k", prewrite_value=b"\x08\x05")
    tail = odd[6:]
    shuffled = tail + odd[:6]
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, shuffled, commit(10, 20))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [
            encode_binlog(tp=1, start_ts=10, commit_ts=20, prewrite_key=b"k", prewrite_value=b"\x08\x05")
        ]


@pytest.mark.parametrize("together", [True, False])
async def test_prewrite_stored_after_its_commit_is_served(tmp_path: Path, together: bool) -> None:
    async with opened(tmp_path, SetClock(15)) as store:
        if together:
            await write(store, commit(10, 20), prewrite(10))
        else:
            await write(store, commit(10, 20))
            await write(store, prewrite(10), commit(10, 20))
        assert len(store.pending) == 0
        store.resolver.advance(100)
        assert await binlogs_of(store) == [merged(10, 20)]
        assert store.reads.outcome(10) == 20


async def test_repetitions_within_one_batch_are_stored_once(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), prewrite(10), commit(10, 20), commit(10, 20), prewrite(10))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20)]
        assert store.log.size == len(encode_record(prewrite(10)) + encode_record(commit(10, 20)))


async def test_store_open_fails_without_timestamp_source(tmp_path: Path) -> None:
    """Rule 3: a start without timestamps fails instead of serving a guess."""
    clock = SetClock()
    clock.down = True
    with pytest.raises(TimestampUnavailable):
        async with opened(tmp_path, clock):
            pass


async def test_pull_above_resolved_ts_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        with pytest.raises(NotResolved):
            await binlogs_of(store, 0, store.resolved_ts + 1)


async def test_plan_over_store_counts_binlogs_and_bytes_that_pull_serves(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(3000)) as store:
        for ts in range(10, 1210, 2):
            await write(store, prewrite(ts), commit(ts, ts + 1))
        resolved_ts = await store.resolver.refresh()
        plan = await store.reads.plan(0, resolved_ts, WatermarkReq(batch_bytes_max=1 << 20))
        assert (plan.batch_count, plan.stop, plan.batch_end_ts) == (600, WatermarkResp.RESOLVED, resolved_ts)
        assert plan.batch_bytes == sum(map(len, await binlogs_of(store)))
        plan = await store.reads.plan(0, resolved_ts, WatermarkReq(batch_bytes_max=1 << 20, batch_count_max=7))
        assert (plan.batch_count, plan.stop, plan.batch_end_ts, plan.stop_ts) == (7, WatermarkResp.LIMIT, 23, 25)


async def test_commit_wakes_waiting_pull_without_polling(tmp_path: Path) -> None:
    """No polling: a commit that becomes visible refreshes the resolved ts at once."""
    clock = SetClock(100)
    async with opened(tmp_path, clock) as store:
        now = await store.resolver.refresh()
        await write(store, prewrite(now + 1))
        waiting = asyncio.create_task(store.resolver.passed(now + 1))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        clock.ts = now + 2  # the commit_ts came from it: whoever asks later gets more
        await write(store, commit(now + 1, now + 2))
        assert await asyncio.wait_for(waiting, 60) > now + 1


async def test_idle_pull_fetches_no_timestamps(tmp_path: Path) -> None:
    """A waiting pull fetches no timestamps while nothing becomes visible: it once span as fast as the TSO answered."""
    clock = SetClock(100)
    async with opened(tmp_path, clock) as store:
        await write(store, prewrite(101), commit(101, 102))
        clock.ts = 1000

        async def pull_for_ever() -> None:
            last_ts = 0
            while True:
                last_ts = await store.resolver.passed(last_ts)

        pulling = asyncio.create_task(pull_for_ever())
        await asyncio.wait_for(store.resolver.passed(102), 60)
        calls = 0
        fetch = clock.get

        async def counted() -> int:
            nonlocal calls
            calls += 1
            return await fetch()

        clock.get = counted  # type: ignore[method-assign]
        for _ in range(50):
            await asyncio.sleep(0)
        assert calls <= 1
        pulling.cancel()
