"""Correctness rules 1 to 5 over a whole store, each by its counterexample."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from binlog.envelope import encode_binlog
from binlog.errors import NotOnline

from pump.errors import Conflict, NoSuchBinlog, NotResolved, Stopping
from pump.store.store import Store
from tests.unit.pump.build import (
    SetClock,
    binlogs_of,
    commit,
    copy_running,
    encode_fake,
    merged,
    opened,
    prewrite,
    refused,
    rollback,
    write,
)


async def test_rule_3_recovery_finds_pending_prewrites(tmp_path: Path) -> None:
    """A P is pending after a restart only if no C or R for it is stored."""
    async with opened(tmp_path, SetClock(1)) as store:
        await write(store, prewrite(10), prewrite(11), prewrite(12), commit(10, 20), rollback(12))
    async with opened(tmp_path, SetClock(100)) as store:
        assert [entry.start_ts for entry in store.pending.first(9)] == [11]
        assert store.pending.first(1)[0].prewrite_key == b"k"
        assert store.resolved_ts == 10
        await write(store, commit(11, 30))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20), merged(11, 30)]


async def test_rule_3_handle_pointer_and_max_commit_ts_never_pass_pending_prewrites(tmp_path: Path) -> None:
    """A Go pump that opens our data-dir serves up to maxCommitTS and reads from handlePointer."""
    async with opened(tmp_path, clock := SetClock(1)) as store:
        await write(store, prewrite(10), prewrite(11), commit(11, 50))
        clock.ts = 100
        await store.resolver.refresh()
        first = store.index.pointer(10)
    async with opened(tmp_path, SetClock(100)) as store:
        assert store.index.handle() == first
        assert store.index.max_commit_ts() == 9
        assert store.index.own_head() is not None
        assert store.index.own_head().pointer == store.index.head()  # type: ignore[union-attr]


async def test_rule_3_resent_commit_succeeds_and_other_commit_ts_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        size = store.log.size
        await write(store, commit(10, 20), prewrite(10))
        assert store.log.size == size
        error = await refused(store, commit(10, 21))
        assert isinstance(error, Conflict)
        assert "commit_ts 20 is stored already" in str(error)
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, commit(10, 20), prewrite(10))
        assert isinstance(await refused(store, commit(10, 21)), Conflict)
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20)]


async def test_rule_3_commit_that_overtook_prewrite_keeps_its_one_outcome(tmp_path: Path) -> None:
    """The commit is stored, then one batch has its prewrite and a second outcome: only the same pair is a success."""
    async with opened(tmp_path, SetClock(100)) as store:
        for start_ts, again in ((10, commit(10, 20)), (30, commit(30, 41)), (50, rollback(50))):
            await write(store, commit(start_ts, start_ts + 10))
            prewritten, repeated = await store.writes.write([prewrite(start_ts), again])
            assert prewritten is None
            assert (repeated is None) == (start_ts == 10)
            assert store.reads.outcome(start_ts) == start_ts + 10
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20), merged(30, 40), merged(50, 60)]


async def test_rule_4_different_prewrite_with_same_ts_is_refused(tmp_path: Path) -> None:
    """The index never overwrites a different record."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10))
        error = await refused(store, prewrite(10, row=b"other"))
        assert isinstance(error, Conflict)
        await write(store, commit(10, 20))
        assert isinstance(await refused(store, prewrite(10, row=b"other")), Conflict)
        assert isinstance(await refused(store, prewrite(20)), Conflict)
        await write(store, prewrite(15))
        assert isinstance(await refused(store, commit(15, 20)), Conflict)
        assert len(store.pending) == 1


async def test_rule_4_a_fake_skips_an_occupied_key(tmp_path: Path) -> None:
    """A held clock gives one ts again and again."""
    async with opened(tmp_path, clock := SetClock(20, held=True)) as store:
        await write(store, prewrite(10), commit(10, 20))
        await store.writes.write_fake()
        assert await binlogs_of(store, fakes=True) == [merged(10, 20)]
        clock.ts = 30
        await store.writes.write_fake()
        await store.writes.write_fake()
        assert await binlogs_of(store, fakes=True) == [merged(10, 20), encode_fake(30)]
        assert await binlogs_of(store) == [merged(10, 20)]


async def test_rule_4_a_fake_at_the_ts_of_a_pending_prewrite_does_not_end_it(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(1)) as store:
        await write(store, prewrite(50))
        await write(store, encode_fake(50))
        assert 50 in store.pending
        assert store.resolver.advance(100) == 49
        await write(store, commit(50, 60))
        assert store.writes.late_commits == 0


async def test_rule_4_ts_is_fetched_before_pending_set_is_read(tmp_path: Path) -> None:
    """While T is on its way a prewrite is acknowledged whose commit may come below T: resolved must not pass it."""
    seen: list[Store] = []

    class Slow(SetClock):
        async def get(self) -> int:
            if seen:
                await write(seen[0], prewrite(500))
                return 1000
            return await super().get()

    async with opened(tmp_path, Slow(100)) as store:
        seen.append(store)
        assert await store.resolver.refresh() == 499
        seen.clear()
        await write(store, commit(500, 900))
        assert store.writes.late_commits == 0


async def test_rule_4_ts_of_fake_binlog_is_reserved_before_it_is_fetched(tmp_path: Path) -> None:
    """A refresh that overtakes the fake must not resolve past it."""

    class Slow(SetClock):
        gate: asyncio.Event | None = None
        taken = asyncio.Event()

        async def get(self) -> int:
            ts = await super().get()
            if self.gate is not None:
                gate, self.gate = self.gate, None
                self.taken.set()
                await gate.wait()
            return ts

    clock = Slow(100)
    async with opened(tmp_path, clock) as store:
        before = store.resolved_ts
        clock.gate = gate = asyncio.Event()
        fake = asyncio.create_task(store.writes.write_fake())
        await clock.taken.wait()
        assert await store.resolver.refresh() == before
        gate.set()
        ts = await fake
        assert store.resolved_ts >= ts
        assert await binlogs_of(store, fakes=True) == [encode_fake(ts)]


async def test_rule_4_resolved_ts_lost_by_kill_is_reached_again_without_late_commits(
    tmp_path: Path,
) -> None:
    """maxCommitTS is saved now and then, so a killed pump may begin below what it had given out. Whatever is pending
    then and was not at that time was acknowledged after it, and commits above it."""
    clock = SetClock(5)
    async with opened(tmp_path / "a", clock, progress_interval_s=1e12) as store:
        await write(store, prewrite(10), commit(10, 20))
        clock.ts = 2000
        given_out = await store.resolver.refresh()
        await write(store, prewrite(1500))
        copy_running(tmp_path / "a", tmp_path / "killed")
    async with opened(tmp_path / "killed", SetClock(3000)) as store:
        assert store.resolved_ts == 1499 < given_out
        with pytest.raises(NotResolved):  # a pull that was planned before the kill is planned again
            await binlogs_of(store, 20, given_out)
        await write(store, commit(1500, 3100))
        await store.resolver.refresh()
        assert await binlogs_of(store, 20, given_out) == []
        assert store.writes.late_commits == 0


async def test_rule_4_the_probe_is_never_pending(tmp_path: Path) -> None:
    """P-RPC-05: an empty payload, and explicit zeros."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, b"", encode_binlog(tp=0, start_ts=0))
        assert (len(store.pending), store.log.size) == (0, 0)
        assert isinstance((await store.writes.write([b""], refuse_prewrites="paused"))[0], NotOnline)


async def test_late_commit_is_counted_named_and_stored(tmp_path: Path) -> None:
    """At or below a resolved ts already given out: stored, counted, named. Never a silent drop."""
    async with opened(tmp_path, SetClock(100)) as store:
        assert await store.resolver.refresh() > 100
        await write(store, prewrite(10), commit(10, 20))
        assert (store.writes.late_commits, list(store.writes.late_ts)) == (1, [20])
        assert await binlogs_of(store) == [merged(10, 20)]
        await write(store, commit(10, 20))
        assert store.writes.late_commits == 1


# Rollbacks of copies (rule 5)


async def test_rule_5_rollback_before_its_prewrite_refuses_it_also_after_restart(tmp_path: Path) -> None:
    """The tombstone refuses the delayed P, also after a restart; a repeated R is a success."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, rollback(10))
        assert "rolled back" in str(await refused(store, prewrite(10)))
        assert isinstance(await refused(store, commit(10, 20)), Conflict)
        assert len(store.pending) == 0
    async with opened(tmp_path, SetClock(100)) as store:
        assert isinstance(await refused(store, prewrite(10)), Conflict)
        await write(store, rollback(10))
        assert store.reads.outcome(10) == 0


async def test_rule_5_a_rollback_after_the_commit_is_refused(tmp_path: Path) -> None:
    """And is no evidence for other pumps."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        assert isinstance(await refused(store, rollback(10)), Conflict)
        assert store.reads.outcome(10) == 20


# A last word before pausing (rule 1)


async def test_rule_1_drained_waits_for_the_commits(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(50))
        assert not await store.writes.drained(0.01)
        waiting = asyncio.create_task(store.writes.drained(10))
        await asyncio.sleep(0)
        await write(store, commit(50, 60))
        assert await waiting


async def test_rule_1_seal_without_pending_prewrites_returns_last_commit_ts(tmp_path: Path) -> None:
    """What it returns is the last commit, not a fake; nothing is taken afterwards, not even a commit."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30))
        await write(store, commit(30, 40))
        await store.writes.write_fake()
        assert store.index.largest_complete() > 40
        assert await store.writes.seal("stopping", 1) == 40
        for late in (prewrite(200), commit(10, 20), rollback(300)):
            with pytest.raises(Stopping, match="stopping"):
                await store.writes.write([late])


async def test_rule_1_seal_of_empty_store_returns_0(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        assert await store.writes.seal("stopping", 1) == 0


async def test_rule_1_seal_with_pending_prewrite_returns_none(tmp_path: Path) -> None:
    """Its commit follows it to this pump, after the restart, at a ts that drainers must not have passed by then."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10))
        assert await store.writes.seal("stopping", 0.01) is None


async def test_rule_1_seal_waits_for_writes_accepted_before(tmp_path: Path) -> None:
    """A commit that is being written has no prewrite in the set it could be seen by: it is waited for by itself."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10))
        writing = asyncio.create_task(store.writes.write([commit(10, 20)]))
        await asyncio.sleep(0)
        assert await store.writes.seal("stopping", 5) == 20
        assert await writing == [None]


async def test_rule_1_seal_of_broken_log_returns_none(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        store.log.give_up("the disk is gone")
        assert await store.writes.seal("stopping", 1) is None


async def test_settle_commits_or_rolls_back_pending_prewrite(tmp_path: Path) -> None:
    """An operator's commit and rollback; the key of the prewrite is served."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), prewrite(11))
        await store.writes.settle(10, 20)
        await store.writes.settle(11, 0)
        with pytest.raises(NoSuchBinlog):
            await store.writes.settle(11, 0)
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20)]
