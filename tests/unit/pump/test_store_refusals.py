"""What a store refuses, and what stands after a disk or an index failed it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import plyvel
import pytest
from binlog.envelope import encode_binlog
from binlog.errors import DecodeError, LogBroken, NoSpace

from pump.errors import InvalidBinlog
from tests.unit.pump.build import (
    SetClock,
    commit,
    encode_fake,
    opened,
    prewrite,
    refused,
    write,
)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"\x08", DecodeError),
        (prewrite(10)[:-3], DecodeError),
        (encode_binlog(tp=3, start_ts=1), InvalidBinlog),
        (encode_binlog(tp=0, start_ts=-5), InvalidBinlog),
        (commit(10, 10), InvalidBinlog),
        (commit(10, 9), InvalidBinlog),
        (commit(10, 0), InvalidBinlog),
    ],
)
async def test_bad_binlogs_are_refused_alone(tmp_path: Path, payload: bytes, kind: type[Exception]) -> None:
    """One bad binlog of a batch has an error; the others are stored; nothing is left pending by it."""
    async with opened(tmp_path, SetClock(100)) as store:
        results = await store.write([prewrite(30), payload, commit(30, 40)])
        assert [type(r) for r in results] == [type(None), kind, type(None)]
        assert store.pending_count == 0


async def test_prewrites_of_a_pump_that_takes_none(tmp_path: Path) -> None:
    """P-RPC-03: commits and rollbacks in any state."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10))
        results = await store.write([prewrite(11), commit(10, 20)], refuse_prewrites="paused")
        assert str(results[0]) == "no online: paused"
        assert results[1] is None
        assert store.pending_count == 0


async def test_a_full_disk(tmp_path: Path) -> None:
    """P-RPC-05, P-RPC-06: everything but fakes is refused, the probe too."""
    async with opened(tmp_path, SetClock(100), stop_bytes=1 << 62) as store:
        for payload in (prewrite(10), commit(10, 20), b""):
            assert isinstance(await refused(store, payload), NoSpace)
        await write(store, encode_fake(50))
        assert store.pending_count == 0


async def test_a_broken_log_refuses_and_keeps_pending_what_may_be_there(tmp_path: Path) -> None:
    """A write with an unknown end stays pending; those after it never reached the log."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(90))

        def fail(_fd: int) -> None:
            raise OSError(5, "Input/output error")

        store.log._sync = fail
        assert isinstance(await refused(store, prewrite(95)), LogBroken)
        assert isinstance(await refused(store, prewrite(96)), LogBroken)
        assert isinstance(await refused(store, commit(90, 99)), LogBroken)
        assert [entry.start_ts for entry in store.pending(9)] == [90, 95]
        assert await store.resolver.refresh() <= 101
    async with opened(tmp_path, SetClock(100)) as store:
        assert 90 in [entry.start_ts for entry in store.pending(9)]


async def test_an_index_that_fails_breaks_the_log_too(tmp_path: Path) -> None:
    """Upstream reports success when the index write failed; here the end is unknown and nothing follows."""
    async with opened(tmp_path, SetClock(100)) as store:

        class Failing:
            def write(self) -> None:
                raise plyvel.IOError("no space left")

        batch = store.index.batch
        store.index.batch = lambda: (batch()[0], Failing())  # type: ignore[method-assign]
        assert "no space left" in str(await refused(store, prewrite(102)))
        store.index.batch = batch  # type: ignore[method-assign]
        assert isinstance(await refused(store, prewrite(103)), LogBroken)
        assert [entry.start_ts for entry in store.pending(9)] == [102]
    async with opened(tmp_path, SetClock(100)) as store:
        assert [entry.start_ts for entry in store.pending(9)] == [102], "the log had it"


async def test_a_cancelled_caller_leaves_a_true_pending_set(tmp_path: Path) -> None:
    """The report of the writer counts, whoever still waits for it."""
    async with opened(tmp_path, SetClock(100)) as store:
        task = asyncio.create_task(store.write([prewrite(10)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await write(store, commit(10, 20))
        assert store.pending_count == 0
