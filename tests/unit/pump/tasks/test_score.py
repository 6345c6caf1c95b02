"""What a pump measures of itself, and the score that it makes of it."""

from __future__ import annotations

import pytest
from binlog.cluster.registry import parse_labels
from hypothesis import given
from hypothesis import strategies as st

from pump import metrics
from pump.tasks.score import (
    BACKLOG_FAIR_BYTES,
    SAMPLES_MAX,
    SCORE_MAX,
    SCORE_MIN,
    WRITE_FAIR_S,
    Backlog,
    Measures,
    WriteTime,
)
from pump.tasks.score import room as room_of

SECONDS = st.floats(0, 1000, allow_nan=False)
SHARES = st.floats(0, 1, allow_nan=False)


def test_score_of_idle_pump_is_maximum_and_halves_at_fair_measures() -> None:
    assert Measures().score == SCORE_MAX
    assert Measures(write_s=WRITE_FAIR_S).score == SCORE_MAX / 2
    assert Measures(room=0.5).score == SCORE_MAX / 2
    assert Measures(backlog_bytes=BACKLOG_FAIR_BYTES).score == SCORE_MAX / 2
    assert Measures(write_s=1e9, room=0.0, backlog_bytes=1 << 60).score == SCORE_MIN


@given(SECONDS, SHARES, st.integers(0, 1 << 50), SECONDS, SHARES, st.integers(0, 1 << 50))
def test_worse_measures_never_make_a_better_score(
    write_s: float, room: float, backlog: int, more_s: float, less: float, more: int
) -> None:
    better = Measures(write_s, room, backlog)
    worse = Measures(write_s + more_s, room * less, backlog + more)
    assert SCORE_MIN <= worse.score <= better.score <= SCORE_MAX


def test_room_measure_is_0_where_writes_are_refused() -> None:
    gib = 1 << 30
    assert room_of(100 * gib, 100 * gib, 0) == 1.0
    assert room_of(55 * gib, 100 * gib, 10 * gib) == 0.5
    assert room_of(10 * gib, 100 * gib, 10 * gib) == 0.0
    assert room_of(5 * gib, 100 * gib, 10 * gib) == 0.0
    assert room_of(5 * gib, 8 * gib, 10 * gib) == 0.0


def test_write_time_mean_follows_and_decays() -> None:
    """Halfway to the newest interval; silence counts as fast, for only writes can show that a pump has recovered."""
    time = WriteTime()
    assert time.update(8.0, 10) == pytest.approx(0.4)
    assert time.update(16.0, 20) == pytest.approx(0.6)
    assert time.update(16.0, 20) == pytest.approx(0.3)
    for _ in range(20):
        time.update(16.0, 20)
    assert Measures(time.mean_s).score == SCORE_MAX


def test_backlog_is_bytes_behind_slowest_drainer() -> None:
    backlog = Backlog([(100, 1000), (200, 2000)])
    assert backlog.above([], 500) == 0, "nobody reads"
    assert backlog.above([50], 0) == 3000
    assert backlog.above([150, 400], 0) == 2000
    backlog.sample(300, 500)
    backlog.sample(300, 600)  # resolved did not move: 500 bytes were surely among them, 600 not
    backlog.sample(400, 900)
    assert backlog.above([250], 1000) == 1000
    assert backlog.above([300], 1000) == 500
    assert backlog.above([399], 1000) == 500
    assert backlog.above([1000], 1000) == 100


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=3 * SAMPLES_MAX), st.integers(0, 100_000))
def test_backlog_estimate_is_never_below_real_backlog(steps: list[tuple[int, int]], position: int) -> None:
    """Whatever samples are thinned out; and what is kept of them is bounded."""
    backlog = Backlog([])
    ts = written = passed = 0
    for more_ts, more_bytes in steps:
        ts, written = ts + more_ts, written + more_bytes
        backlog.sample(ts, written)
        if ts <= position and more_ts:
            passed = written
    assert backlog.above([position], written) >= written - passed
    assert len(backlog._samples) <= SAMPLES_MAX


def test_score_counters_include_successful_writes_only() -> None:
    """A rename of a metric's method or label would leave the score blind."""
    seconds, count = metrics.write_seconds()
    written = metrics.written_bytes()
    metrics.observe("WriteBinlog", "succ", 2.0)
    metrics.observe("WriteBatch", "succ", 3.0)
    metrics.observe("WriteBatch", "fail", 100.0)
    metrics.observe("Tso", "succ", 100.0)
    metrics.written("WriteBinlog", [b"12345", b"678"], [None, None], took_s=0.1)
    after_s, after = metrics.write_seconds()
    assert (after_s - seconds, after - count) == (pytest.approx(5.0), 2)
    assert metrics.written_bytes() - written == 8


def test_parse_labels_reads_names_and_values_and_refuses_reserved_ones() -> None:
    assert parse_labels(["zone=a", " rack = 1 "]) == {"zone": "a", "rack": "1"}
    for bad in (["zone"], ["=a"], ["zone="], ["final=true"], ["status=h:1"], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="label '"):
            parse_labels(bad)
