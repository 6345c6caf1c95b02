"""What a store keeps in memory does not depend on how many binlogs it holds: counted in blocks of Python's allocator,
which a noisy machine does not change. `bench.size` measures the same of a process and ten million."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from pump.store import matcher
from tests.unit.pump.build import SetClock, commit, opened, prewrite

BATCH = 1024  # transactions
PART = matcher.RECENT_MAX // 2  # so many remember ts, two each, before the oldest of them are forgotten
GROWTH_MAX = 0.02  # of a block for each transaction: an entry in any table would be one or more


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
async def test_store_memory_does_not_grow_with_stored_binlogs(tmp_path: Path, fast: bool) -> None:
    """Also of what is not the usual shape of TiDB's binlogs, which goes another way; pulled meanwhile."""
    first = 1 << 60 if fast else 1 << 20  # a ts of fewer bytes is none of TiDB's
    clock, last = SetClock(first), first
    async with opened(tmp_path, clock) as store:

        async def part() -> int:
            nonlocal last
            for _ in range(PART // BATCH):
                begin = clock.ts + 100
                starts = range(begin, begin + 4 * BATCH, 4)
                for payloads in ([prewrite(ts) for ts in starts], [commit(ts, ts + 2) for ts in starts]):
                    assert not any(await store.writes.write(payloads))
                clock.ts = starts[-1] + 10  # commits come before the source has passed them
                await store.resolver.refresh()
                count = 0
                async for chunk in store.reads.pull(last, starts[-1] + 2, bytes_max=1 << 20):
                    count += len(list(chunk))
                assert count == BATCH
                last = starts[-1] + 2
            gc.collect()
            return sys.getallocatedblocks()

        for _ in range(3):  # both sets of remembered ts, and caches, fill up
            before = await part()
        grown = await part() - before
        assert len(store.pending) == 0
    assert grown / PART < GROWTH_MAX, f"{grown} blocks more for {PART} transactions"
