"""How long a destination is tried again."""

from __future__ import annotations

import time

import pytest

from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.retry import Patience


def test_time_runs_from_the_first_failure() -> None:
    """Work that goes well for long, and then loses its connection, is tried again."""
    patience = Patience("the test", 0.05)
    deadline_s = time.monotonic() + 0.1
    while time.monotonic() < deadline_s:
        pass
    patience.failed(DestinationError("once"))
    assert patience.failures == 1
    with pytest.raises(DestinationDown, match="the test: gave up after"):
        while True:
            patience.failed(DestinationError("again"))


def test_without_patience_the_first_failure_is_the_end() -> None:
    with pytest.raises(DestinationDown):
        Patience("the test", 0.0).failed(DestinationError("once"))
