"""What fails now, since when; what is over at the next try is not told."""

from __future__ import annotations

import time

from drainer.sink.retry import TRIES_REPORTED, Failures


def test_single_failures_are_not_reported() -> None:
    failures = Failures()
    failures.failed("slot 3", OSError("deadlock"))
    failures.failed("slot 3", OSError("deadlock"))
    assert failures.now is None and failures.last is None
    failures.clear("slot 3")
    failures.failed("slot 3", OSError("deadlock"))
    assert failures.now is None


def test_repeated_failure_is_reported_until_cleared_and_kept_as_last() -> None:
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


def test_what_failed_before_it_was_told_has_failed_since_then() -> None:
    failures = Failures()
    failures.failed("h:3306", OSError("refused"), tries=TRIES_REPORTED)
    failures.failed("batch", OSError("slot 3"), tries=TRIES_REPORTED, failing_s=100.0)
    failures.failed("batch", OSError("slot 4"), failing_s=20.0)
    now = failures.now
    assert now is not None and (now.what, now.error) == ("batch", "slot 4")
    assert time.time() - 200 < now.since_s <= time.time() - 100
