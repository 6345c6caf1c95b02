"""TSO arithmetic."""

from __future__ import annotations

from binlog.cluster import tso
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, (1 << 45) - 1), st.integers(0, tso.LOGICAL_MAX))
def test_parts(ms: int, counter: int) -> None:
    ts = tso.compose(ms, counter)
    assert (tso.physical_ms(ts), tso.logical(ts)) == (ms, counter)


def test_order_is_time_then_counter() -> None:
    assert tso.compose(1, tso.LOGICAL_MAX) < tso.compose(2)
    assert tso.compose(1, tso.LOGICAL_MAX) + 1 == tso.compose(2)


def test_approximate_counts_whole_seconds() -> None:
    """What a record's updateTS is made of (R-04)."""
    start = tso.compose(1_700_000_000_000, 5)
    assert tso.approximate(start, 0.999) == start
    assert tso.approximate(start, 2.5) == tso.compose(1_700_000_002_000, 5)
    assert tso.approximate(0, 100.0) == 0


@given(st.integers(0, (1 << 64) - 1))
def test_every_ts_can_be_shown(ts: int) -> None:
    assert tso.format_local(ts)


def test_shown_with_milliseconds_and_counter() -> None:
    assert tso.format_local(tso.compose(1_700_000_000_042, 7)).endswith("#7")
    assert ".042 " in tso.format_local(tso.compose(1_700_000_000_042, 7))
