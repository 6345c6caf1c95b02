"""TSO arithmetic."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from binlog.cluster import tso
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, (1 << 45) - 1), st.integers(0, tso.LOGICAL_MAX))
def test_tso_splits_into_composed_parts(ms: int, counter: int) -> None:
    ts = tso.compose(ms, counter)
    assert (tso.physical_ms(ts), tso.logical(ts)) == (ms, counter)


def test_tso_order_is_time_then_counter() -> None:
    assert tso.compose(1, tso.LOGICAL_MAX) < tso.compose(2)
    assert tso.compose(1, tso.LOGICAL_MAX) + 1 == tso.compose(2)


def test_tso_approximate_adds_whole_seconds() -> None:
    """What a record's updateTS is made of (R-04)."""
    start = tso.compose(1_700_000_000_000, 5)
    assert tso.approximate(start, 0.999) == start
    assert tso.approximate(start, 2.5) == tso.compose(1_700_000_002_000, 5)
    assert tso.approximate(0, 100.0) == 0


@given(st.integers(0, (1 << 64) - 1))
def test_format_local_accepts_any_ts(ts: int) -> None:
    assert tso.format_local(ts)


def test_format_local_shows_milliseconds_and_counter() -> None:
    assert tso.format_local(tso.compose(1_700_000_000_042, 7)).endswith("#7")
    assert ".042 " in tso.format_local(tso.compose(1_700_000_000_042, 7))


AT = tso.compose(1_795_168_800_000)  # 2026-11-20 10:00 UTC


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("470613165340622850", 470613165340622850),
        ("0", 0),
        ("-1", -1),
        ("2026-11-20 10:00Z", AT),
        ("2026-11-20T11:00:00+01:00", AT),
        ("2026-11-20 09:00:00.000 -0100", AT),
        ("2026-11-20 10:00", tso.of_time(datetime(2026, 11, 20, 10))),
        ("2026-11-20", tso.of_time(datetime(2026, 11, 20))),
    ],
)
def test_tso_parse_reads_number_or_time(text: str, wanted: int) -> None:
    assert tso.parse(text) == wanted


@pytest.mark.parametrize(("text", "seconds"), [("-2h", 7200), ("-30m", 1800), ("-1d", 86_400), ("-5s", 5)])
def test_tso_parse_reads_time_before_now(text: str, seconds: int) -> None:
    assert abs(time.time() - seconds - tso.physical_ms(tso.parse(text)) / 1000) < 60


@pytest.mark.parametrize("text", ["", "yesterday", "2h", "-2w", "2026-13-01", "2026-11-20 25:00", "10:00", "1.5"])
def test_tso_parse_refuses_text_that_is_neither_number_nor_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither a TSO nor|must be in|hour must"):
        tso.parse(text)


def test_format_utc_shows_time_or_plain_number() -> None:
    assert tso.format_utc(AT + 7) == "2026-11-20 10:00:00.000 UTC"
    assert tso.format_utc(1 << 90) == f"ts {1 << 90}"
