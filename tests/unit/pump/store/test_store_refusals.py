"""What a store refuses, and what stands after a disk or an index failed it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import plyvel
import pytest
from binlog.envelope import encode_binlog
from binlog.errors import DecodeError, LogBroken, NoSpace, NotOnline

from pump import metrics
from pump.errors import InvalidBinlog
from pump.index.leveldb import Batch, IndexFailed
from tests.support.counted import counting
from tests.unit.pump.build import (
    SetClock,
    commit,
    encode_fake,
    opened,
    prewrite,
    refused,
    rollback,
    write,
)


def failing_sync(_fd: int) -> None:
    raise OSError(5, "Input/output error")


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
async def test_invalid_binlog_of_batch_is_refused_alone(tmp_path: Path, payload: bytes, kind: type[Exception]) -> None:
    """One bad binlog of a batch has an error; the others are stored; nothing is left pending by it."""
    async with opened(tmp_path, SetClock(100)) as store:
        results = await store.writes.write([prewrite(30), payload, commit(30, 40)])
        assert [type(r) for r in results] == [type(None), kind, type(None)]
        assert len(store.pending) == 0


async def test_full_disk_refuses_everything_but_fake_binlogs(tmp_path: Path) -> None:
    """P-RPC-05, P-RPC-06: everything but fakes is refused, the probe too."""
    async with opened(tmp_path, SetClock(100), stop_bytes=1 << 62) as store:
        for payload in (prewrite(10), commit(10, 20), b""):
            assert isinstance(await refused(store, payload), NoSpace)
        await write(store, encode_fake(50))
        assert len(store.pending) == 0


async def test_broken_log_refuses_writes_and_keeps_uncertain_prewrites_pending(tmp_path: Path) -> None:
    """A write with an unknown end stays pending; those after it never reached the log."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(90))
        store.log.sync = failing_sync
        assert isinstance(await refused(store, prewrite(95)), LogBroken)
        for late in (prewrite(96), b"", encode_binlog(tp=0, start_ts=0)):
            error = await refused(store, late)
            assert isinstance(error, NotOnline), "nothing of it is stored, and the probe is no yes"
            assert "000000.vlog is broken since a write failed" in str(error) and "restart" in str(error)
        assert isinstance(await refused(store, commit(90, 99)), LogBroken)
        assert "Input/output error" in await asyncio.wait_for(store.broken(), 60)
        assert [entry.start_ts for entry in store.pending.first(9)] == [90, 95]
        assert await store.resolver.refresh() <= 101
    async with opened(tmp_path, SetClock(100)) as store:
        assert 90 in [entry.start_ts for entry in store.pending.first(9)]


@pytest.mark.parametrize(
    "batch",
    [
        (prewrite(95), prewrite(95)),
        (commit(90, 96), commit(90, 96)),
        (rollback(90), rollback(90)),
        (rollback(80), rollback(80)),  # a tombstone: nothing is pending for it
        (rollback(90), commit(90, 96)),  # refused because of a rollback that may be nowhere
        (prewrite(95), prewrite(95, row=b"other")),
        (commit(90, 96), commit(90, 97)),
        (encode_fake(99), encode_fake(99)),
        (prewrite(95), commit(95, 97), prewrite(95), commit(95, 97)),
    ],
)
async def test_rule_23_repetition_in_batch_with_failed_sync_fails_too(tmp_path: Path, batch: tuple[bytes, ...]) -> None:
    """One batch, whose sync fails: nothing of it is answered with success, nor with a conflict that may not be one;
    what was pending stays pending; a repetition in a later batch gets no other answer."""
    async with opened(tmp_path, clock := SetClock(1)) as store:
        await write(store, prewrite(90))
        store.log.sync = failing_sync
        for error in await store.writes.write(batch):
            assert isinstance(error, LogBroken)
        for error in await store.writes.write(batch):
            assert isinstance(error, LogBroken | NotOnline)
        assert 90 in [entry.start_ts for entry in store.pending.first(9)]
        clock.ts = 500
        assert await store.resolver.refresh() == 89
        assert (store.reads.outcome(90), store.reads.outcome(95)) == (0, 0)
        assert store.reads.read_at(95) is None and store.reads.read_at(96) is None
        assert store.index.outcome(80) is None and store.index.outcome(90) is None


async def test_rule_23_a_repetition_of_what_was_stored_before_stays_settled(tmp_path: Path) -> None:
    """The failed batch does not bring back what had ended: it would hold the resolved ts for ever."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        store.log.sync = failing_sync
        for error in await store.writes.write([prewrite(30), prewrite(10), commit(10, 20)]):
            assert isinstance(error, LogBroken)
        assert [entry.start_ts for entry in store.pending.first(9)] == [30]
        assert store.reads.outcome(10) == 20


async def test_rule_23_write_fake_raises_after_failed_sync(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        store.log.sync = failing_sync
        with pytest.raises(LogBroken):
            await store.writes.write_fake()
        assert len(store.pending) == 0
        await asyncio.wait_for(store.writes.write_fakes(0.001), 60)  # it ends: the log takes nothing more


async def test_failed_index_write_breaks_log_and_keeps_prewrite_pending(tmp_path: Path) -> None:
    """Upstream reports success when the index write failed; here the end is unknown and nothing follows."""
    async with opened(tmp_path, SetClock(100)) as store:

        def failing() -> Batch:
            made = batch()
            made.write = Mock(side_effect=plyvel.IOError("no space left"))
            return made

        counted = counting(metrics.ERROR_INDEX)
        batch = store.index.batch
        store.index.batch = failing  # type: ignore[method-assign]
        assert "no space left" in str(await refused(store, prewrite(102)))
        assert counted() == 1
        store.index.batch = batch  # type: ignore[method-assign]
        assert isinstance(await refused(store, prewrite(103)), NotOnline)
        assert [entry.start_ts for entry in store.pending.first(9)] == [102]
    async with opened(tmp_path, SetClock(100)) as store:
        assert [entry.start_ts for entry in store.pending.first(9)] == [102], "the log had it"


@pytest.mark.parametrize("file_bytes_max", [1 << 20, 200], ids=["judged on the loop", "judged by the thread"])
async def test_unreadable_index_fails_all_writes_under_way_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_bytes_max: int
) -> None:
    """It fails amid a batch: what was judged before, what was being judged, and what would have been next are all
    answered with the error, and the reason is the index's own words."""
    async with opened(tmp_path, SetClock(100), file_bytes_max=file_bytes_max) as store:
        await write(store, prewrite(10))

        def fail(_ts: int) -> None:
            raise IndexFailed("data-dir: the index cannot be read: Corruption")

        monkeypatch.setattr(store.index, "pointer", fail)
        groups = ([prewrite(95)], [prewrite(96), prewrite(10), prewrite(97)], [prewrite(98)])
        calls = [asyncio.create_task(store.writes.write(group)) for group in groups]
        done, waiting = await asyncio.wait(calls, timeout=60)
        for call in waiting:
            call.cancel()
        assert not waiting
        errors = [error for call in done for error in call.result()]
        assert len(errors) == 5 and all(str(error).startswith("data-dir: the index") for error in errors)
        assert str(store.log.broken).startswith("data-dir: the index"), "an operator reads it"
        pending = store.pending.first(9)
        assert {95, 96, 97, 98} <= {entry.start_ts for entry in pending}, "nobody knows what became of them"
        assert all(entry.in_flight == 0 for entry in pending)


async def test_cancelled_writer_leaves_pending_set_correct(tmp_path: Path) -> None:
    """The report of the writer counts, whoever still waits for it."""
    async with opened(tmp_path, SetClock(100)) as store:
        task = asyncio.create_task(store.writes.write([prewrite(10)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await write(store, commit(10, 20))
        assert len(store.pending) == 0
