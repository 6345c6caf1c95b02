"""What a task of an executor pulls, from both kinds of pump."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from binlog import envelope
from binlog.errors import PumpUnavailable
from binlog.security import Security

from drainer.pumps.mark import PumpRange
from drainer.pumps.pull import payloads, pull
from drainer.pumps.stub import StubPump


def binlog(ts: int) -> bytes:
    return envelope.encode_binlog(tp=1, start_ts=ts - 1, commit_ts=ts, prewrite_value=b"x" * ts)


@pytest.fixture(params=[True, False], ids=["ours", "Go's"])
def pump(request: pytest.FixtureRequest) -> Iterator[StubPump]:
    made = StubPump(extension=request.param)
    made.put(*(binlog(ts) for ts in (10, 20, 30, 40)))
    made.resolve(40)
    yield made
    made.stop()


def pulled(pump: StubPump, *, extension: bool) -> list[int]:
    part = PumpRange("p", pump.host, extension, 10, 30)
    found = pull(part, cluster_id=1, security=Security())
    return [envelope.scan(payload).commit_ts for message in found for payload in payloads(message)]


def test_everything_of_the_range(pump: StubPump) -> None:
    """The plan may be older than the program that now runs on the pump's data-dir, either way round."""
    assert pulled(pump, extension=True) == [20, 30]
    assert pulled(pump, extension=False) == [20, 30]


def test_a_pump_that_is_killed_is_an_error() -> None:
    pump = StubPump()
    pump.put(binlog(20))
    pump.resolve(40)
    pump.failing_pulls = 1
    try:
        with pytest.raises(PumpUnavailable, match="pump p"):
            pulled(pump, extension=True)
    finally:
        pump.stop()
