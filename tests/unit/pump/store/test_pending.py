"""The pending set and the resolved ts: correctness rules 3 and 4 as values."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pump.store.limits import Horizon
from pump.store.resolver import Pending, PendingSet, Resolver
from tests.unit.pump.build import SetClock


def arrived(*starts: int) -> PendingSet:
    pending = PendingSet()
    for ts in starts:
        pending.arrive(Pending(ts, since_s=0, size=1))
    return pending


def resolver_of(pending: PendingSet) -> Resolver:
    return Resolver(pending, SetClock(), Horizon())


def test_rule_4_resolved_never_goes_back() -> None:
    """An old prewrite that arrives late holds the next steps, not the ones given out."""
    resolved = resolver_of(pending := PendingSet())
    assert resolved.advance(100) == 100
    pending.arrive(Pending(50, since_s=0, size=1))
    assert resolved.advance(200) == 100
    pending.stored([50])
    pending.settled([50])
    assert resolved.advance(150) == 150
    assert resolved.advance(120) == 150


def test_resolved_ts_stays_below_oldest_pending_prewrite() -> None:
    """One slow transaction holds back only what is newer than its own start."""
    resolved = resolver_of(pending := arrived(70, 30, 90))
    assert resolved.advance(100) == 29
    pending.stored([30])
    pending.settled([30])
    assert resolved.advance(100) == 69


def test_prewrite_sent_twice_stays_pending_after_first_copy_fails() -> None:
    """The first copy fails before the log, the second is still on its way: the prewrite stays pending."""
    pending = arrived(10, 10)
    pending.refused(10)
    assert pending.oldest() == 10
    pending.stored([10])
    assert pending.oldest() == 10
    pending.settled([10])
    assert pending.oldest() is None


def test_repeated_prewrite_after_commit_leaves_pending_set() -> None:
    """P, C, and P again: the last one finds the outcome stored."""
    pending = arrived(10)
    pending.stored([10])
    pending.arrive(Pending(10, since_s=1, size=1))
    pending.settled([10])
    assert 10 in pending
    pending.refused(10)
    assert len(pending) == 0


def test_prewrite_with_unknown_write_result_stays_pending() -> None:
    """A write that may be in the log is pending until its outcome is known."""
    pending = arrived(10, 20)
    pending.stored([10])
    pending.refused(20)
    assert [entry.start_ts for entry in pending.first(5)] == [10]


def test_settling_of_absent_prewrite_changes_nothing() -> None:
    """A commit whose prewrite is on another pump."""
    pending = arrived(10)
    pending.settled([99])
    assert len(pending) == 1


def test_older_than_returns_stored_prewrites_only() -> None:
    """Only what is stored can be asked about and settled."""
    pending = PendingSet()
    pending.arrive(Pending(1, since_s=0, size=1))
    pending.arrive(Pending(2, since_s=5, size=1))
    pending.arrive(Pending(3, since_s=0, size=1))
    for ts in (1, 2):
        pending.stored([ts])
    assert [entry.start_ts for entry in pending.older_than(1)] == [1]


def test_reserved_ts_that_is_also_a_prewrite_keeps_writer_key_and_job() -> None:
    """The ts after the resolved ts is reserved while a fake binlog is made; a prewrite may begin at it meanwhile."""
    pending = PendingSet()
    pending.reserve(10)
    pending.arrive(Pending(10, since_s=0, size=1, ddl_job_id=7, prewrite_key=b"key", writer=b"writer"))
    pending.stored([10])
    assert pending.first(1) == [Pending(10, 0, 1, 7, b"key", b"writer", held=True)]
    pending.release(10)
    assert pending.oldest() == 10
    pending.settled([10])
    assert pending.oldest() is None


def test_reserved_ts_holds_resolved_ts_and_is_not_listed_as_prewrite() -> None:
    pending = arrived(30)
    pending.reserve(20)
    assert (pending.oldest(), len(pending)) == (20, 2)
    assert [entry.start_ts for entry in pending.first(5)] == [30] and 20 not in pending
    pending.release(20)
    assert (pending.oldest(), len(pending)) == (30, 1)


def test_pending_set_heap_stays_small_while_one_old_prewrite_is_pending() -> None:
    pending = arrived(1)
    for ts in range(2, 20_000):
        pending.arrive(Pending(ts, since_s=0, size=1))
        pending.stored([ts])
        pending.settled([ts])
        assert pending.oldest() == 1
        assert len(pending._heap) < 1100
    pending.refused(1)
    assert pending.oldest() is None


def test_restored_prewrites_hold_resolved_ts() -> None:
    """What recovery found counts as before the crash."""
    pending = PendingSet()
    pending.restore([Pending(40, 0.0, 1), Pending(20, 0.0, 1)])
    assert resolver_of(pending).advance(100) == 19


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_rule_6_and_4_every_commit_is_above_resolved_ts_in_any_interleaving(seed: int, steps: int) -> None:
    """Writers in any interleaving: T is fetched before the set is read, so no commit lands at or below resolved."""
    dice = random.Random(seed)
    clock = 0
    resolved = resolver_of(pending := PendingSet())
    acked: list[int] = []
    fetched: list[int] = []
    begun: list[int] = []
    for _ in range(steps):
        clock += 1
        move = dice.choice(["begin", "prewrite", "commit", "fetch", "resolve"])
        if move == "begin":
            begun.append(clock)
        elif move == "prewrite" and begun:
            ts = begun.pop(dice.randrange(len(begun)))
            pending.arrive(Pending(ts, since_s=0, size=1))
            pending.stored([ts])
            acked.append(ts)
        elif move == "commit" and acked:
            ts = acked.pop(dice.randrange(len(acked)))
            assert not resolved.is_late(clock), "a commit_ts taken after the prewrite's acknowledgement"
            pending.settled([ts])
        elif move == "fetch":
            fetched.append(clock)
        elif move == "resolve" and fetched:
            resolved.advance(fetched.pop(0))
    # commits whose ts was taken but which are stored later are held by their prewrite
    for ts in acked:
        assert resolved.ts < ts or not resolved.is_late(clock + 1)
