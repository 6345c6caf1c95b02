"""Samples of the last hour."""

from __future__ import annotations

from binlog.runtime.history import History
from hypothesis import given
from hypothesis import strategies as st


def test_history_turns_counters_into_rates_and_keeps_gauges() -> None:
    history = History(interval_s=10)
    assert history.due(0.0)
    history.add(0.0, {"lag": 3.0}, {"rows": 100})
    assert not history.due(9.9) and history.due(10.0)
    history.add(10.0, {"lag": 1.0}, {"rows": 150})
    assert history.series("lag", 10.0) == [(10.0, 3.0), (0.0, 1.0)]
    assert history.series("rows", 10.0) == [(0.0, 5.0)], "the first sample has no rate"
    assert history.series("unknown", 10.0) == []


def test_history_rate_of_restarted_counter_counts_from_zero() -> None:
    history = History()
    history.add(0.0, {}, {"rows": 1000})
    history.add(10.0, {}, {"rows": 20})
    assert history.series("rows", 10.0) == [(0.0, 2.0)]


def test_history_accepts_gauge_that_appears_later() -> None:
    history = History()
    history.add(0.0, {"disk": 5.0})
    history.add(10.0, {"disk": 4.0, "lag": 1.0})
    assert history.series("lag", 10.0) == [(0.0, 1.0)]
    assert history.series("disk", 10.0) == [(10.0, 5.0), (0.0, 4.0)]


@given(st.lists(st.floats(0.1, 500.0), min_size=1, max_size=80))
def test_history_keeps_samples_of_its_span_only(pauses: list[float]) -> None:
    history = History(interval_s=10, span_s=600)
    now = 0.0
    for pause in pauses:
        now += pause
        history.add(now, {"n": now}, {"total": now})
    series = history.series("n", now)
    assert series[-1] == (0.0, now)
    assert all(0 <= ago <= 600 for ago, _ in series)
    assert [ago for ago, _ in series] == sorted((ago for ago, _ in series), reverse=True)
    assert all(abs(rate - 1.0) < 1e-6 for _, rate in history.series("total", now)), "it grows by one a second"
