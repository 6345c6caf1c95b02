"""How long a destination is tried again."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from drainer.sink import retry
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.retry import Failures, RetryDeadline


def test_retry_deadline_starts_at_first_failure() -> None:
    """Work that goes well for long, and then loses its connection, is tried again."""
    deadline = RetryDeadline("the test", 0.05)
    deadline_s = time.monotonic() + 0.1
    while time.monotonic() < deadline_s:
        pass
    deadline.failed(DestinationError("once"))
    assert deadline.failures == 1
    with pytest.raises(DestinationDown, match="the test: gave up after"):
        while True:
            deadline.failed(DestinationError("again"))


def test_a_success_in_between_begins_the_time_anew() -> None:
    """A slot whose chunks are committed, and which meets a deadlock now and then, is not failing."""
    deadline = RetryDeadline("the test", 0.05)
    for _ in range(3):
        deadline.failed(DestinationError("a deadlock"))
        deadline_s = time.monotonic() + 0.1
        while time.monotonic() < deadline_s:
            pass
        deadline.over()


def test_work_that_gives_up_says_for_how_long_it_has_failed() -> None:
    first = DestinationError("refused")
    first.failing_s = 10.0
    with pytest.raises(DestinationDown, match="gave up after 10 s") as found:
        RetryDeadline("the test", 5.0).failed(first)
    assert 10.0 <= found.value.failing_s < 300


def test_retry_deadline_of_zero_raises_at_first_failure() -> None:
    with pytest.raises(DestinationDown):
        RetryDeadline("the test", 0.0).failed(DestinationError("once"))


@pytest.mark.parametrize("is_second", [False, True])
def test_failure_is_reported_after_repeats_or_long_try(monkeypatch: pytest.MonkeyPatch, is_second: bool) -> None:
    """Five tries of ten seconds each would be a silent minute; a deadlock or two are nothing to be told of."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(retry, "time", clock)
    shown = Failures()
    monkeypatch.setattr(retry, "FAILURES", shown)
    with capture_logs() as logs:
        quick = RetryDeadline("quick", 60.0)
        for _ in range(2):
            quick.failed(DestinationError("a deadlock"))
        assert shown.now is None
        for _ in range(2):
            quick.failed(DestinationError("a deadlock"))
        assert not logs
        quick.failed(DestinationError("a deadlock"))
        assert [line["failures"] for line in logs] == [5]
        shown.clear("quick")
        slow = RetryDeadline("slow", 60.0)
        if is_second:
            slow.failed(DestinationError("a deadlock"))
            assert shown.now is None
        now[0] += 10
        slow.failed(DestinationError("Connection refused"))
    assert shown.now is not None, "the page and /status say it, too"
    assert shown.now.error == "Connection refused"
    assert [(line["what"], line["failures"], line["error"]) for line in logs[1:]] == [
        ("slow", 1 + is_second, "Connection refused")
    ]
