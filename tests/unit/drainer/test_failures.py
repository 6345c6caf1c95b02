"""What fails now, here or in a task, since when; what is over at the next try is not told."""

from __future__ import annotations

import pytest

from drainer.failures import REPORT_EXPIRES_S, TRIES_REPORTED, Failure, Failures


def test_a_deadlock_or_two_are_nothing() -> None:
    failures = Failures()
    failures.failed("slot 3", OSError("deadlock"))
    failures.failed("slot 3", OSError("deadlock"))
    assert failures.now is None and failures.last is None
    failures.clear("slot 3")
    failures.failed("slot 3", OSError("deadlock"))
    assert failures.now is None


def test_what_goes_on_is_told_until_it_is_over_and_remembered() -> None:
    failures = Failures()
    for number in range(5):
        failures.failed("h:3306", OSError(f"refused {number}"))
    failures.failed("batch", OSError("another"), tries=TRIES_REPORTED)
    now = failures.now
    assert now is not None
    assert (now.what, now.error, now.tries) == ("h:3306", "refused 4", 5)
    assert now.since_s <= now.last_s
    failures.clear("h:3306")
    assert failures.now is not None and failures.now.what == "batch"
    failures.clear("batch")
    assert failures.now is None
    assert failures.last is not None and failures.last.error == "another"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def failure(what: str = "slot 1", error: str = "refused", *, since_s: float = 50.0, tries: int = 3) -> Failure:
    return Failure(what, error, since_s, since_s + tries, tries)


def test_what_a_task_reports_is_told_until_it_says_that_it_is_over() -> None:
    failures = Failures(Clock())
    failures.heard("a", 1, failure())
    assert failures.now == failures.elsewhere == failures.last == failure()
    assert failures.here is None
    failures.heard("a", 2, None)
    assert failures.now is None and failures.elsewhere is None
    assert failures.last == failure()


def test_a_report_that_is_not_renewed_expires() -> None:
    """Its task was killed, or its last message was lost."""
    clock = Clock()
    failures = Failures(clock)
    failures.heard("a", 1, failure())
    clock.now_s += REPORT_EXPIRES_S - 1
    failures.heard("b", 1, failure("slot 2", since_s=60.0))
    assert failures.now == failure()
    clock.now_s += 2
    assert failures.now == failure("slot 2", since_s=60.0)
    failures.heard("b", 2, failure("slot 2", since_s=60.0, tries=9))
    clock.now_s += REPORT_EXPIRES_S - 1
    assert failures.now == failure("slot 2", since_s=60.0, tries=9), "it was renewed"
    clock.now_s += 2
    assert failures.now is None


def test_messages_that_come_twice_or_out_of_order_are_ignored() -> None:
    clock = Clock()
    failures = Failures(clock)
    failures.heard("a", 2, None)
    failures.heard("a", 1, failure())
    assert failures.now is None
    failures.heard("a", 3, failure())
    clock.now_s += REPORT_EXPIRES_S + 1
    failures.heard("a", 3, failure())
    assert failures.now is None, "a repetition renews nothing"


def test_two_tasks_with_one_reason_count_once() -> None:
    failures = Failures(Clock())
    failures.heard("a", 1, failure("h:3306", "refused", since_s=50.0, tries=9))
    failures.heard("b", 1, failure("h:3306", "lost", since_s=58.0, tries=4))
    failures.heard("c", 1, failure("other", since_s=70.0))
    assert failures.now == Failure("h:3306", "lost", 50.0, 62.0, 9)
    failures.heard("a", 2, None)
    assert failures.now == failure("h:3306", "lost", since_s=58.0, tries=4)
    failures.heard("b", 2, None)
    assert failures.now is not None and failures.now.what == "other"


def test_the_one_that_has_lasted_longest_is_told_here_or_there() -> None:
    failures = Failures(Clock())
    failures.failed("here", OSError("full"), tries=TRIES_REPORTED)
    failures.heard("a", 1, failure())
    assert failures.now == failure(), "which began in 1970"
    assert failures.here is not None and failures.here.what == "here"
    failures.clear("slot 1")
    assert failures.now == failure(), "only its task can end it"
    failures.heard("a", 2, None)
    assert failures.now == failures.here


def test_only_so_many_reporters_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to go is the one that has been silent longest."""
    monkeypatch.setattr("drainer.failures.REPORTERS_MAX", 2)
    failures = Failures(Clock())
    failures.heard("a", 1, failure("a", since_s=1.0))
    failures.heard("b", 1, failure("b", since_s=2.0))
    failures.heard("a", 2, failure("a", since_s=1.0))
    failures.heard("c", 1, failure("c", since_s=3.0))
    failures.heard("a", 3, None)
    assert failures.now is not None and failures.now.what == "c"


def test_the_watcher_hears_of_what_is_reported_alone() -> None:
    failures = Failures()
    seen: list[Failure | None] = []
    failures.watcher = lambda: seen.append(failures.here)
    for _ in range(TRIES_REPORTED - 1):
        failures.failed("slot 3", OSError("deadlock"))
    failures.clear("slot 3")
    assert seen == []
    for _ in range(TRIES_REPORTED + 1):
        failures.failed("slot 3", OSError("deadlock"))
    failures.clear("slot 3")
    failures.clear("slot 3")
    assert [found.tries if found else 0 for found in seen] == [TRIES_REPORTED, TRIES_REPORTED + 1, 0]


def test_a_reset_forgets_what_was_counted() -> None:
    failures = Failures()
    failures.failed("slot 3", OSError("deadlock"), tries=TRIES_REPORTED)
    failures.reset()
    assert failures.here is None
    failures.failed("slot 3", OSError("deadlock"))
    assert failures.here is None
