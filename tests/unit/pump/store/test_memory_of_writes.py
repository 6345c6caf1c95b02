"""A store keeps no payload after it has answered, and needs no garbage collector for that: a pump's collector runs only
every 100,000 objects."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from binlog.errors import BinlogError

from pump.store.group_commit import StoreOptions
from pump.store.store import Store
from tests.unit.pump.build import SetClock, opened, prewrite

Way = Callable[[Store, Sequence[bytes]], Awaitable[list[BinlogError | None]]]
TIDB_TS = 1 << 60  # a ts of fewer bytes is none of TiDB's


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _written(store: Store, payloads: Sequence[bytes]) -> list[BinlogError | None]:
    return await store.writes.write(payloads)


async def _submitted(store: Store, payloads: Sequence[bytes]) -> list[BinlogError | None]:
    answer: asyncio.Future[list[BinlogError | None]] = asyncio.get_running_loop().create_future()
    store.writes.submit(payloads, lambda results, _left: answer.set_result(results))
    return await answer


@pytest.mark.parametrize("way", [_written, _submitted])
@pytest.mark.parametrize("first_ts", [TIDB_TS, 1 << 20])
@pytest.mark.parametrize("row_bytes", [100, StoreOptions().loop_bytes_max])
async def test_stored_payloads_have_no_references_left_after_answer(
    tmp_path: Path, way: Way, first_ts: int, row_bytes: int
) -> None:
    async with opened(tmp_path, SetClock(first_ts)) as store:
        payloads = [prewrite(first_ts + 4 * n, row=bytes(row_bytes)) for n in range(3)]
        before = [sys.getrefcount(payload) for payload in payloads]
        assert await way(store, list(payloads)) == [None] * 3
        assert [sys.getrefcount(payload) for payload in payloads] == before
        assert await way(store, list(payloads)) == [None] * 3, "a repetition is answered alike"
        assert [sys.getrefcount(payload) for payload in payloads] == before


@pytest.mark.parametrize("way", [_written, _submitted])
async def test_refused_payloads_have_no_references_left_after_answer(tmp_path: Path, way: Way) -> None:
    """Also not those that were stored together with a refused one."""
    async with opened(tmp_path, SetClock(TIDB_TS), transaction_bytes_max=1_000) as store:
        payloads = [prewrite(TIDB_TS), prewrite(TIDB_TS + 4)[:-3], prewrite(TIDB_TS + 8, row=bytes(2_000))]
        before = [sys.getrefcount(payload) for payload in payloads]
        results = await way(store, list(payloads))
        assert [result is None for result in results] == [True, False, False]
        assert [sys.getrefcount(payload) for payload in payloads] == before
