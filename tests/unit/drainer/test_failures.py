"""What fails now, since when; what is over at the next try is not told."""

from __future__ import annotations

from drainer.failures import TRIES_TOLD, Troubles


def test_a_deadlock_or_two_are_nothing() -> None:
    troubles = Troubles()
    troubles.failed("slot 3", OSError("deadlock"))
    troubles.failed("slot 3", OSError("deadlock"))
    assert troubles.now is None and troubles.last is None
    troubles.over("slot 3")
    troubles.failed("slot 3", OSError("deadlock"))
    assert troubles.now is None


def test_what_goes_on_is_told_until_it_is_over_and_remembered() -> None:
    troubles = Troubles()
    for number in range(5):
        troubles.failed("h:3306", OSError(f"refused {number}"))
    troubles.failed("batch", OSError("another"), tries=TRIES_TOLD)
    now = troubles.now
    assert now is not None
    assert (now.what, now.error, now.tries) == ("h:3306", "refused 4", 5)
    assert now.since_s <= now.last_s
    troubles.over("h:3306")
    assert troubles.now is not None and troubles.now.what == "batch"
    troubles.over("batch")
    assert troubles.now is None
    assert troubles.last is not None and troubles.last.error == "another"
