"""Correctness rule 7 on values: an allocator, its term and its bound, with clocks the test holds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from binlog.cluster.tso import LOGICAL_MAX, compose, physical_ms
from hypothesis import given
from hypothesis import strategies as st

from pump.cluster.election import WINDOW_MS, Allocator, Term, start_after
from pump.errors import AbsurdBound


def in_office(*, bound_ms: int = 0, clock_ms: int = 1_000_000, log_max_ts: int = 0) -> Allocator:
    allocator = Allocator()
    allocator.begin_term(bound_ms=bound_ms, clock_ms=clock_ms, log_max_ts=log_max_ts)
    wanted = allocator.wanted_bound(clock_ms)
    assert wanted is not None
    allocator.granted(wanted)
    return allocator


def allocate(allocator: Allocator, count: int, clock_ms: int) -> int:
    ts = allocator.allocate(count, clock_ms)
    assert ts is not None
    return ts


def test_allocated_timestamps_rise_within_and_between_milliseconds() -> None:
    allocator = in_office()
    first = allocate(allocator, 1, 1_000_000)
    assert first == compose(1_000_000, 0)
    assert allocate(allocator, 5, 1_000_000) == compose(1_000_000, 5)
    assert allocate(allocator, 1, 1_000_001) == compose(1_000_001, 0)
    assert allocate(allocator, 1, 999_000) == compose(1_000_001, 1), "a clock that goes back changes nothing"


def test_allocation_moves_to_next_millisecond_when_logical_part_is_full() -> None:
    """A batch never straddles two: it ends with its last timestamp."""
    allocator = in_office()
    assert allocate(allocator, LOGICAL_MAX + 1, 1_000_000) == compose(1_000_000, LOGICAL_MAX)
    assert allocate(allocator, 2, 1_000_000) == compose(1_000_001, 1)


def test_rule_7_allocator_gives_no_timestamp_at_or_above_stored_bound() -> None:
    """What is given out is below what etcd holds, so that a successor can start there."""
    allocator = Allocator()
    allocator.begin_term(bound_ms=0, clock_ms=1_000_000, log_max_ts=0)
    assert allocator.allocate(1, 1_000_000) is None, "nothing before the first bound is stored"
    allocator.granted(1_000_000 + WINDOW_MS)
    assert allocator.allocate(1, 1_000_000 + WINDOW_MS) is None
    assert physical_ms(allocate(allocator, 1, 1_000_000 + WINDOW_MS - 1)) < 1_000_000 + WINDOW_MS


def test_rule_7_new_term_starts_above_bound_clock_and_log() -> None:
    """Its clock may be behind, and an etcd that lost its data must not take time back."""
    behind = in_office(bound_ms=2_000_000, clock_ms=1_000_000)
    assert allocate(behind, 1, 1_000_000) >= compose(2_000_000)
    ahead = in_office(bound_ms=2_000_000, clock_ms=3_000_000)
    assert allocate(ahead, 1, 3_000_000) >= compose(3_000_000)
    wiped = in_office(bound_ms=0, clock_ms=1_000_000, log_max_ts=compose(5_000_000, 7))
    assert allocate(wiped, 1, 1_000_000) > compose(5_000_000, 7)


def test_allocator_repeats_no_timestamp_when_same_pump_is_elected_again() -> None:
    allocator = in_office()
    first = allocate(allocator, 10, 1_000_000)
    allocator.begin_term(bound_ms=1_000_000 + WINDOW_MS, clock_ms=999_999, log_max_ts=0)
    allocator.granted(1_000_000 + 3 * WINDOW_MS)
    assert allocate(allocator, 1, 999_999) > first


def test_rule_7_term_length_counts_from_before_the_renewal_request() -> None:
    """The answer to a renewal may be late; the lease in etcd is not later for that."""
    term = Term()
    assert not term.holds(0)
    term.renewed(asked_s=10, ttl_s=3)
    assert term.holds(12.3)
    assert not term.holds(12.5), "the margin for clocks of different speed"
    term.renewed(asked_s=9, ttl_s=3)
    assert term.holds(12.3), "an answer out of order shortens nothing"
    term.end()
    assert not term.holds(10)


def test_rule_7_stopped_leader_does_not_hold_term_after_waking_up() -> None:
    """It read nothing while it slept; its successor gave out 1500; now it allocates 501 - and must not answer."""
    old, term = in_office(clock_ms=500), Term()
    term.renewed(asked_s=0, ttl_s=3)
    new = in_office(bound_ms=old.bound_ms, clock_ms=500)
    given = allocate(new, 1, 500)
    stale = allocate(old, 1, 501)
    assert stale < given, "the allocator alone cannot know"
    assert not term.holds(60), "the term, looked at after the allocation, does"


@given(st.integers(0, 2**32))
def test_rule_7_later_requests_get_larger_timestamps_over_any_leaders_and_clocks(seed: int) -> None:
    """Leaders come and go with clocks that disagree: over all of them timestamps rise."""
    dice = random.Random(seed)
    stored_ms, last = 0, 0
    for _ in range(6):
        skew = dice.randrange(-5000, 5000)
        clock = 1_000_000 + dice.randrange(20_000)
        allocator = Allocator()
        allocator.begin_term(bound_ms=stored_ms, clock_ms=max(0, clock + skew), log_max_ts=0)
        for _ in range(dice.randrange(30)):
            clock += dice.randrange(0, 900)
            wanted = allocator.wanted_bound(clock + skew)
            if wanted is not None and dice.random() < 0.8:
                stored_ms = max(stored_ms, wanted)
                allocator.granted(wanted)
            count = dice.choice([1, 10, LOGICAL_MAX])
            ts = allocator.allocate(count, clock + skew)
            if ts is not None:
                assert ts - count + 1 > last
                assert physical_ms(ts) < stored_ms
                last = ts


CLOCK_MS, DAY_MS = 1_700_000_000_000, 86_400_000


def log_of(*ts: int) -> Callable[[int], int]:
    """The largest of these that is not above what is asked for."""
    return lambda until_ts: max((each for each in ts if each <= until_ts), default=0)


def test_bound_far_ahead_of_clock_is_refused_with_repair_command_in_error() -> None:
    """Who went on from there would give every transaction a ts of that time."""
    start_after(bound_ms=CLOCK_MS + DAY_MS, clock_ms=CLOCK_MS, log_ts_until=log_of())
    for bound_ms in (CLOCK_MS + DAY_MS + 1, physical_ms((1 << 63) - 1), 10**30):
        with pytest.raises(AbsurdBound, match=r"/tso/bound says \d+ .*bound-ahead-max.*reset-tso-bound -dry-run"):
            start_after(bound_ms=bound_ms, clock_ms=CLOCK_MS, log_ts_until=log_of())
    start_after(bound_ms=CLOCK_MS + 9 * DAY_MS, clock_ms=CLOCK_MS, log_ts_until=log_of(), ahead_max_s=9 * 86_400)


def test_ts_far_ahead_in_own_log_is_refused_only_if_bound_is_absent() -> None:
    """The bound is above everything that was given out; without one, nobody knows what was."""
    bad, good = (1 << 63) - 5, compose(CLOCK_MS + 1000)
    log = log_of(good, bad)
    assert start_after(bound_ms=CLOCK_MS, clock_ms=CLOCK_MS, log_ts_until=log) == good
    assert start_after(bound_ms=None, clock_ms=CLOCK_MS, log_ts_until=log_of(good)) == good
    with pytest.raises(AbsurdBound, match=r"its log holds ts 9223372036854775803 .* is absent.*reset-tso-bound"):
        start_after(bound_ms=None, clock_ms=CLOCK_MS, log_ts_until=log)
