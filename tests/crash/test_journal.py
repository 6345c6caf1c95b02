"""The journal finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.journal import Journal, Served
from tests.unit.pump.build import merged

Streams = tuple[list[Served], set[int]]


def written() -> tuple[Journal, Streams]:
    """10 → 20 and 11 → 21 are acknowledged; 12 → 22 was sent without an answer; 13 is prewritten, 14 rolled back."""
    journal = Journal("p1")
    for start_ts, commit_ts, acked in ((10, 20, True), (11, 21, True), (12, 22, False), (13, -1, False), (14, 0, True)):
        sent = journal.begin(start_ts)
        sent.prewrite_acked, sent.commit_ts, sent.outcome_acked = True, commit_ts, acked
    served = [Served.of(journal.sent[ts].merged) for ts in (10, 11, 12)]
    return journal, (served, {13})


def test_journal_accepts_possible_outcomes() -> None:
    journal, (served, pending) = written()
    assert journal.faults(served, pending) == []
    assert journal.faults(served[:2], pending | {12}) == [], "what was not answered may be there or not"
    assert journal.faults(served[:1], pending, read_until_ts=20) == [], "what was not read yet"
    assert journal.faults(served[:1], pending, read_until_ts=21) != []
    assert [each.start_ts for each in journal.unfinished()] == [12, 13]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda served, pending: served.pop(0), "the acknowledged commit 10 → 20 is lost"),
        (lambda served, pending: served.insert(1, served[0]), "start_ts 10 is served twice"),
        (lambda served, pending: served.reverse(), "out of order: commit_ts 21 comes after 22"),
        (lambda served, pending: pending.clear(), "the acknowledged prewrite 13 is neither"),
        (lambda served, pending: served.pop(), "the acknowledged prewrite 12 is neither"),
        (lambda served, pending: pending.add(10), "10 is pending, and its outcome 20 was acknowledged"),
        (lambda served, pending: pending.add(14), "14 is pending, and its outcome 0 was acknowledged"),
        (lambda served, pending: pending.add(12), "12 is pending and served"),
        (lambda served, pending: pending.add(99), "99 is pending and was never sent"),
        (lambda served, pending: served.append(Served.of(merged(98, 99))), "98 → 99 is served and was never sent"),
        (lambda served, pending: served.append(Served.of(merged(13, 99))), "13 → 99 is served and was never sent"),
        (
            lambda served, pending: served.__setitem__(0, Served.of(merged(10, 20))),
            "served with other bytes",
        ),
    ],
)
def test_journal_finds_impossible_outcome(change: Callable[[list[Served], set[int]], object], fault: str) -> None:
    journal, (served, pending) = written()
    change(served, pending)
    assert any(fault in found for found in journal.faults(served, pending)), journal.faults(served, pending)
