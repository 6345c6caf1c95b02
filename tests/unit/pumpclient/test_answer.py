"""What an answer says about where a prewrite may be."""

from __future__ import annotations

import pytest
from binlog.errors import ClusterMismatch, NoSpace, NotOnline

from pumpclient.answer import Outcome, classify, lost, not_sent


@pytest.mark.parametrize(
    ("code", "message", "outcome"),
    [
        (0, "", Outcome.ACKED),
        (2, str(NotOnline("paused")), Outcome.REFUSED),
        (2, str(ClusterMismatch(1, 2)), Outcome.REFUSED),
        (2, str(NoSpace(1, 2)), Outcome.REFUSED),
        (8, str(NoSpace(1, 2)), Outcome.REFUSED),  # one full disk is no reason to give up on the others
        (8, "Received message larger than max (9 vs. 4)", Outcome.TOO_LARGE),
        (9, "anything", Outcome.REFUSED),
        (6, "rolled back before", Outcome.CONFLICT),
        (2, "write failed: no such file", Outcome.UNKNOWN),
        (1, "", Outcome.UNKNOWN),
        (4, "deadline", Outcome.UNKNOWN),
        (13, "the log is broken", Outcome.UNKNOWN),
        (14, "connection reset", Outcome.UNKNOWN),
        (15, "", Outcome.UNKNOWN),
        (99, "a code of the future", Outcome.UNKNOWN),
    ],
)
def test_codes(code: int, message: str, outcome: Outcome) -> None:
    answer = classify(code, message)
    assert answer.outcome is outcome
    assert answer.acked is (outcome is Outcome.ACKED)
    assert message in answer.detail


def test_only_a_pump_that_heard_has_decided() -> None:
    assert not lost("x").heard
    assert not not_sent("x").heard
    assert classify(9, "").heard
    assert classify(0, "").heard


def test_a_pump_with_too_many_bytes_in_flight_stored_nothing_and_is_no_limit_of_size() -> None:
    """Over the extension it is RESOURCE_EXHAUSTED, over upstream's service UNKNOWN: another try may be taken."""
    text = "too many bytes in flight: 10 are in use, and a request of 9 bytes does not fit into in-flight-bytes-max 10"
    assert {classify(code, text).outcome for code in (2, 8)} == {Outcome.REFUSED}
