"""Correctness rules 5 and 19 as a state machine: who is rolled back, when, and that a commit_ts stays."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pumpclient.errors import CommitTsChanged, TooManyTransactions, UnknownTransaction
from pumpclient.tracker import Tracker

KEY = b"k"


def begun(*start_ts: int, open_max: int = 100) -> Tracker:
    tracker = Tracker(open_max=open_max)
    for number in start_ts:
        tracker.begin(number, KEY, now_s=float(number))
    return tracker


def test_tracker_cleanup_names_every_pump_but_the_acknowledging_one() -> None:
    tracker = begun(1)
    for pump in ("c", "a", "b"):
        tracker.unknown(1, pump)
    tracker.acked(1, "b")  # b's first answer was lost, its second came
    assert tracker.ending(1, 5) == "b"
    clean = tracker.settled(1)
    assert (clean.start_ts, clean.pumps, clean.prewrite_key) == (1, ("a", "c"), KEY)


def test_tracker_allows_no_cleanup_before_outcome_is_settled() -> None:
    """There is no way to a CleanUp but `settled`, which needs an end, and `failed`, which needs that nobody acked."""
    tracker = begun(1)
    tracker.unknown(1, "a")
    tracker.acked(1, "b")
    with pytest.raises(AssertionError):
        tracker.settled(1)
    tracker = begun(1)
    tracker.acked(1, "b")
    with pytest.raises(AssertionError):
        tracker.failed(1)


@pytest.mark.parametrize(("first", "second"), [(5, 6), (5, 0), (0, 5)])
def test_tracker_refuses_changed_commit_ts(first: int, second: int) -> None:
    """Rule 19; a rollback is an end like another."""
    tracker = begun(1)
    tracker.acked(1, "a")
    tracker.ending(1, first)
    tracker.undelivered(1)
    with pytest.raises(CommitTsChanged) as caught:
        tracker.ending(1, second)
    assert (caught.value.sent, caught.value.asked) == (first, second)
    assert tracker.ending(1, first) == "a"


def test_tracker_refuses_commit_without_acknowledged_prewrite() -> None:
    tracker = begun(1)
    with pytest.raises(UnknownTransaction):
        tracker.ending(1, 5)
    with pytest.raises(UnknownTransaction):
        tracker.ending(2, 5)


def test_tracker_limit_refuses_new_transaction_until_one_was_reported_expired() -> None:
    tracker = begun(1, 2, open_max=2)
    with pytest.raises(TooManyTransactions, match="2 transactions are open"):
        tracker.begin(3, KEY, now_s=3)
    assert [t.start_ts for t in tracker.expired(now_s=10, ttl_s=8.5)] == [1]
    tracker.begin(3, KEY, now_s=10)
    assert len(tracker) == 2
    with pytest.raises(UnknownTransaction):
        tracker.ending(1, 5)


def test_tracker_keeps_expired_transaction_while_its_delivery_is_under_way() -> None:
    tracker = begun(1, open_max=1)
    tracker.acked(1, "a")
    tracker.ending(1, 5)
    tracker.expired(now_s=100, ttl_s=1)
    with pytest.raises(TooManyTransactions):
        tracker.begin(2, KEY, now_s=100)
    tracker.undelivered(1)
    tracker.begin(2, KEY, now_s=100)


def test_tracker_returns_expired_transactions_once_in_order() -> None:
    tracker = begun(1, 2, 3)
    assert [t.start_ts for t in tracker.expired(now_s=4, ttl_s=1.5)] == [1, 2]
    assert tracker.expired(now_s=4, ttl_s=1.5) == []
    assert [t.start_ts for t in tracker.expired(now_s=9, ttl_s=1.5)] == [3]


class OneTransaction(RuleBasedStateMachine):
    """Any order of answers: the acknowledging pump is never told to roll back, the others always are."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = begun(1)
        self.copies: set[str] = set()
        self.acked: str | None = None
        self.ended: int | None = None
        self.cleaned: tuple[str, ...] | None = None

    @precondition(lambda self: self.acked is None and self.cleaned is None)
    @rule(pump=st.sampled_from("abcd"), outcome=st.sampled_from(["unknown", "refused", "acked"]))
    def try_one(self, pump: str, outcome: str) -> None:
        if outcome == "unknown":
            self.tracker.unknown(1, pump)
            self.copies.add(pump)
        elif outcome == "acked":
            self.tracker.acked(1, pump)
            self.acked = pump

    @precondition(lambda self: self.acked is None and self.cleaned is None)
    @rule()
    def give_up(self) -> None:
        self.cleaned = self.tracker.failed(1).pumps

    @precondition(lambda self: self.acked is not None and self.cleaned is None)
    @rule(commit_ts=st.sampled_from([0, 7, 8]))
    def send_end(self, commit_ts: int) -> None:
        if self.ended is None or self.ended == commit_ts:
            assert self.tracker.ending(1, commit_ts) == self.acked
            self.ended = commit_ts
        else:
            with pytest.raises(CommitTsChanged):
                self.tracker.ending(1, commit_ts)

    @precondition(lambda self: self.ended is not None and self.cleaned is None)
    @rule()
    def settle(self) -> None:
        self.cleaned = self.tracker.settled(1).pumps

    @precondition(lambda self: self.cleaned is not None)
    @rule(commit_ts=st.sampled_from([0, 7]))
    def end_again(self, commit_ts: int) -> None:
        with pytest.raises(UnknownTransaction):
            self.tracker.ending(1, commit_ts)

    @invariant()
    def cleaned_are_the_copies_without_the_acked(self) -> None:
        if self.cleaned is not None:
            assert set(self.cleaned) == self.copies - {self.acked}
            assert len(self.tracker) == 0


OneTransaction.TestCase.settings = settings(stateful_step_count=12)
TestOneTransaction = OneTransaction.TestCase
