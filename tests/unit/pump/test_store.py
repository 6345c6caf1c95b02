"""A store as a whole: correctness rules 1 to 5 by their counterexamples, repetition, refusal, the sorter."""

from __future__ import annotations

import asyncio
from pathlib import Path

import plyvel
import pytest
from binlog.envelope import encode_binlog
from binlog.errors import DecodeError, LogBroken, NoSpace, NotOnline, PurgedPosition, TimestampUnavailable

from pump.errors import Conflict, DamagedRecord, InvalidBinlog, NoSuchPrewrite, NotResolved, Stopping
from pump.plan import Limits, Stop
from pump.store import Store
from tests.unit.pump.build import SetClock, binlogs_of, commit, encode_fake, merged, opened, prewrite, rollback


async def write(store: Store, *payloads: bytes) -> None:
    assert await store.write(payloads) == [None] * len(payloads)


async def refused(store: Store, payload: bytes) -> BaseException | None:
    (error,) = await store.write([payload])
    return error


# What is served


async def test_a_pair_is_served_as_one(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20)]
        assert await binlogs_of(store, 20) == []
        assert await binlogs_of(store, 0, 19) == []


async def test_commit_order_whatever_the_write_order(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(1), prewrite(2), prewrite(3), commit(3, 30), commit(1, 10), commit(2, 20))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(1, 10), merged(2, 20), merged(3, 30)]


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
async def test_sequences_of_the_sorter(tmp_path: Path, steps: list[bytes], served: list[int]) -> None:
    """§5.2 TestSorter; where upstream's sorter drops 9 behind 10, the resolved ts waits and serves both in order."""
    async with opened(tmp_path, SetClock(1000)) as store:
        for step in steps:
            await write(store, step)
        await store.resolver.refresh()
        got = [s.commit_ts async for c in store.pull(0, store.resolved_ts, bytes_max=100) for s in c]
        assert got == served


async def test_resolved_ts_waits_for_the_oldest(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(90), prewrite(95), commit(95, 99))
        assert await store.resolver.refresh() == 101
        await write(store, prewrite(102))
        assert await store.resolver.refresh() == 101
        await write(store, commit(102, 104), commit(90, 105))
        assert await store.resolver.refresh() > 101


async def test_unusual_field_orders_are_merged_by_reading_both(tmp_path: Path) -> None:
    """protobuf allows any order; what is served is the same binlog."""
    odd = prewrite(10)[14:] + prewrite(10)[:14]
    odd = encode_binlog(tp=0, start_ts=10, prewrite_key=b"k", prewrite_value=b"\x08\x05")
    tail = odd[6:]
    shuffled = tail + odd[:6]
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, shuffled, commit(10, 20))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [
            encode_binlog(tp=1, start_ts=10, commit_ts=20, prewrite_key=b"k", prewrite_value=b"\x08\x05")
        ]


async def test_a_commit_without_its_prewrite_is_not_served(tmp_path: Path) -> None:
    """P-PULL-03: the prewrite is on another pump."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, commit(10, 20))
        await store.resolver.refresh()
        assert await binlogs_of(store) == []
        assert store.outcome(10) == 0


@pytest.mark.parametrize("together", [True, False])
async def test_a_prewrite_behind_its_commit_completes_it(tmp_path: Path, together: bool) -> None:
    async with opened(tmp_path, SetClock(15)) as store:
        if together:
            await write(store, commit(10, 20), prewrite(10))
        else:
            await write(store, commit(10, 20))
            await write(store, prewrite(10), commit(10, 20))
        assert store.pending_count == 0
        store.resolver.advance(100)
        assert await binlogs_of(store) == [merged(10, 20)]
        assert store.outcome(10) == 20


# Rule 3


async def test_rule_3_recovery_finds_pending_prewrites(tmp_path: Path) -> None:
    """A P is pending after a restart only if no C or R for it is stored."""
    async with opened(tmp_path, SetClock(1)) as store:
        await write(store, prewrite(10), prewrite(11), prewrite(12), commit(10, 20), rollback(12))
    async with opened(tmp_path, SetClock(100)) as store:
        assert [entry.start_ts for entry in store.pending(9)] == [11]
        assert store.pending(1)[0].prewrite_key == b"k"
        assert store.resolved_ts == 10
        await write(store, commit(11, 30))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20), merged(11, 30)]


async def test_rule_3_handle_and_max_commit_never_pass_what_is_pending(tmp_path: Path) -> None:
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


async def test_rule_3_a_resent_commit_is_a_success(tmp_path: Path) -> None:
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


async def test_rule_3_one_outcome_also_when_it_overtook_its_prewrite(tmp_path: Path) -> None:
    """The commit is stored, then one batch has its prewrite and a second outcome: only the same pair is a success."""
    async with opened(tmp_path, SetClock(100)) as store:
        for start_ts, again in ((10, commit(10, 20)), (30, commit(30, 41)), (50, rollback(50))):
            await write(store, commit(start_ts, start_ts + 10))
            prewritten, repeated = await store.write([prewrite(start_ts), again])
            assert prewritten is None
            assert (repeated is None) == (start_ts == 10)
            assert store.outcome(start_ts) == start_ts + 10
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20), merged(30, 40), merged(50, 60)]


async def test_repetitions_within_one_batch(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), prewrite(10), commit(10, 20), commit(10, 20), prewrite(10))
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20)]
        assert store.counters.written == 2


async def test_nothing_is_served_before_t_is_fetched(tmp_path: Path) -> None:
    """Rule 3: a start without timestamps fails instead of serving a guess."""
    clock = SetClock()
    clock.down = True
    with pytest.raises(TimestampUnavailable):
        async with opened(tmp_path, clock):
            pass


# Rule 4


async def test_rule_4_another_prewrite_under_the_same_ts(tmp_path: Path) -> None:
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
        assert store.pending_count == 1


async def test_rule_4_a_fake_skips_an_occupied_key(tmp_path: Path) -> None:
    """A held clock gives one ts again and again."""
    async with opened(tmp_path, SetClock(20, held=True)) as store:
        await write(store, prewrite(10), commit(10, 20))
        await store.write_fake()
        assert await binlogs_of(store, fakes=True) == [merged(10, 20)]
        store._timestamps.ts = 30  # type: ignore[attr-defined]
        await store.write_fake()
        await store.write_fake()
        assert await binlogs_of(store, fakes=True) == [merged(10, 20), encode_fake(30)]
        assert await binlogs_of(store) == [merged(10, 20)]


async def test_rule_4_t_is_fetched_before_the_pending_set_is_read(tmp_path: Path) -> None:
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
        assert store.counters.late_commits == 0


async def test_rule_4_a_fakes_place_is_reserved_before_its_ts_is_fetched(tmp_path: Path) -> None:
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
        fake = asyncio.create_task(store.write_fake())
        await clock.taken.wait()
        assert await store.resolver.refresh() == before
        gate.set()
        ts = await fake
        assert store.resolved_ts >= ts
        assert await binlogs_of(store, fakes=True) == [encode_fake(ts)]


async def test_rule_4_the_probe_is_never_pending(tmp_path: Path) -> None:
    """P-RPC-05: an empty payload, and explicit zeros."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, b"", encode_binlog(tp=0, start_ts=0))
        assert (store.pending_count, store.log.size) == (0, 0)
        assert isinstance((await store.write([b""], refuse_prewrites="paused"))[0], NotOnline)


async def test_a_late_commit_is_an_alarm_and_is_kept(tmp_path: Path) -> None:
    """At or below a resolved ts already given out: stored, counted, named. Never a silent drop."""
    async with opened(tmp_path, SetClock(100)) as store:
        assert await store.resolver.refresh() > 100
        await write(store, prewrite(10), commit(10, 20))
        assert (store.counters.late_commits, list(store.counters.late_ts)) == (1, [20])
        assert await binlogs_of(store) == [merged(10, 20)]
        await write(store, commit(10, 20))
        assert store.counters.late_commits == 1


# Rule 5


async def test_rule_5_a_rollback_may_overtake_its_prewrite(tmp_path: Path) -> None:
    """The tombstone refuses the delayed P, also after a restart; a repeated R is a success."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, rollback(10))
        assert "rolled back" in str(await refused(store, prewrite(10)))
        assert isinstance(await refused(store, commit(10, 20)), Conflict)
        assert store.pending_count == 0
    async with opened(tmp_path, SetClock(100)) as store:
        assert isinstance(await refused(store, prewrite(10)), Conflict)
        await write(store, rollback(10))
        assert store.outcome(10) == 0


async def test_rule_5_a_rollback_after_the_commit_is_refused(tmp_path: Path) -> None:
    """And is no evidence for other pumps."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        assert isinstance(await refused(store, rollback(10)), Conflict)
        assert store.outcome(10) == 20


# Rule 1


async def test_rule_1_drained_waits_for_the_commits(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(50))
        assert not await store.drained(0.01)
        waiting = asyncio.create_task(store.drained(10))
        await asyncio.sleep(0)
        await write(store, commit(50, 60))
        assert await waiting


async def test_rule_1_sealed_with_nothing_pending_is_a_last_word(tmp_path: Path) -> None:
    """What it returns is the last commit, not a fake; nothing is taken afterwards, not even a commit."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30))
        await write(store, commit(30, 40))
        await store.write_fake()
        assert store.index.largest_complete() > 40
        assert await store.seal("stopping", 1) == 40
        for late in (prewrite(200), commit(10, 20), rollback(300)):
            with pytest.raises(Stopping, match="stopping"):
                await store.write([late])


async def test_rule_1_an_empty_pump_is_final_at_0(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        assert await store.seal("stopping", 1) == 0


async def test_rule_1_sealed_with_a_prewrite_pending_is_none(tmp_path: Path) -> None:
    """Its commit follows it to this pump, after the restart, at a ts that drainers must not have passed by then."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10))
        assert await store.seal("stopping", 0.01) is None


async def test_rule_1_sealing_waits_for_what_was_taken_before(tmp_path: Path) -> None:
    """A commit that is being written has no prewrite in the set it could be seen by: it is waited for by itself."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10))
        writing = asyncio.create_task(store.write([commit(10, 20)]))
        await asyncio.sleep(0)
        assert await store.seal("stopping", 5) == 20
        assert await writing == [None]


async def test_rule_1_a_broken_log_has_no_last_word(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        store.log.give_up("the disk is gone")
        assert await store.seal("stopping", 1) is None


# Bad input and refusals


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


# Pulls


async def test_pulls_stay_within_what_was_promised(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        with pytest.raises(NotResolved):
            await binlogs_of(store, 0, store.resolved_ts + 1)


async def test_a_purged_position_is_an_error(tmp_path: Path) -> None:
    """P-RPC-09 [Q]: never a later start in silence."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30), commit(30, 40))
        await store.resolver.refresh()
        store.index.save_purged(25)
        with pytest.raises(PurgedPosition):
            await binlogs_of(store, 24)
        assert await binlogs_of(store, 25) == [merged(30, 40)]


async def test_a_damaged_record_ends_a_pull_with_its_place(tmp_path: Path) -> None:
    """P-PULL-03 upstream ends the stream as if all was well, for ever."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30), commit(30, 40))
        await store.resolver.refresh()
        at = store.index.pointer(30)
        assert at is not None
        path = tmp_path / "value" / "000000.vlog"
        data = bytearray(path.read_bytes())
        data[at.offset + 20] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(DamagedRecord, match=f"byte {at.offset}"):
            await binlogs_of(store)
        assert await binlogs_of(store, 0, 20) == [merged(10, 20)]


async def test_settle(tmp_path: Path) -> None:
    """An operator's commit and rollback; the key of the prewrite is served."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), prewrite(11))
        await store.settle(10, 20)
        await store.settle(11, 0)
        with pytest.raises(NoSuchPrewrite):
            await store.settle(11, 0)
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(10, 20)]


async def test_plan_over_a_store(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(3000)) as store:
        for ts in range(10, 1210, 2):
            await write(store, prewrite(ts), commit(ts, ts + 1))
        resolved_ts = await store.resolver.refresh()
        plan = await store.plan(0, resolved_ts, Limits(1 << 20))
        assert (plan.count, plan.stop, plan.end_ts) == (600, Stop.RESOLVED, resolved_ts)
        assert plan.bytes == sum(map(len, await binlogs_of(store)))
        plan = await store.plan(0, resolved_ts, Limits(1 << 20, count_max=7))
        assert (plan.count, plan.stop, plan.end_ts, plan.stop_ts) == (7, Stop.LIMIT, 23, 25)


async def test_waiting_pulls_are_woken_by_a_commit(tmp_path: Path) -> None:
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
        assert await asyncio.wait_for(waiting, 2) > now + 1


async def test_a_pull_that_has_everything_asks_for_nothing(tmp_path: Path) -> None:
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
        await asyncio.wait_for(store.resolver.passed(102), 2)
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
