"""Line charts as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from binlog.runtime.page import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Alarm,
    Chart,
    Fact,
    History,
    Mood,
    Table,
    bytes_text,
    count_tick,
    render,
    round_above,
    seconds_tick,
    span_text,
    svg,
)
from hypothesis import given
from hypothesis import strategies as st


def lines(chart: Chart) -> list[list[tuple[float, float]]]:
    root = ET.fromstring(svg(chart))
    found = [one.attrib["points"] for one in root.iter("polyline")]
    return [[tuple(map(float, pair.split(","))) for pair in text.split()] for text in found]  # type: ignore[misc]


def test_chart_draws_newest_value_at_right_and_highest_at_top() -> None:
    ((first, last),) = lines(Chart("lag", [(20.0, 0.0), (0.0, 10.0)], seconds_tick))
    assert last == (WIDTH - RIGHT, TOP), "10 is itself a round number"
    assert first[0] < last[0] and first[1] == HEIGHT - BOTTOM


def test_chart_line_has_gap_where_values_are_missing() -> None:
    assert [len(run) for run in lines(Chart("lag", [(600.0, 1), (590.0, 1), (20.0, 1), (10.0, 1)], str))] == [2, 2]


@pytest.mark.parametrize(
    ("oldest_s", "begin", "middle"),
    [
        (40, "−5 min", "−2.5 min"),
        (300, "−5 min", "−2.5 min"),
        (301, "−15 min", "−7.5 min"),
        (3600, "−60 min", "−30 min"),
    ],
)
def test_chart_time_axis_fits_oldest_value(oldest_s: float, begin: str, middle: str) -> None:
    """A program that started a minute ago is to be seen, too."""
    chart = Chart("lag", [(oldest_s, 1.0), (0.0, 1.0)], seconds_tick)
    assert re.findall(r">(−[^<]+|now)<", svg(chart)) == ["now", middle, begin]
    first, _ = lines(Chart("lag", [(chart.span_s, 1.0), (chart.span_s - 10, 1.0)], seconds_tick))[0]
    assert first[0] == LEFT, "the oldest point of a full axis is at its left end"


def test_chart_without_values_says_so() -> None:
    text = svg(Chart("lag", [], seconds_tick))
    assert "no values yet" in text and lines(Chart("lag", [], seconds_tick)) == []


def test_chart_texts_are_escaped() -> None:
    text = svg(Chart("<lag>", [(0.0, 1.0)], lambda value: f"<{value}>"))
    ET.fromstring(text)
    assert "<lag>" not in text


@given(st.lists(st.tuples(st.floats(-10, 4000), st.floats(0, 1e15)), max_size=30), st.sampled_from([1000, 1024]))
def test_chart_points_lie_inside_plot_area(points: list[tuple[float, float]], step_of: int) -> None:
    for run in lines(Chart("any", sorted(points, reverse=True), count_tick, step_of)):
        for x, y in run:
            assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
            assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


@given(st.floats(1e-9, 1e15))
def test_round_above_returns_round_number_close_to_value(value: float) -> None:
    for step_of in (1000, 1024):
        top = round_above(value, step_of)
        assert value * 0.999_999 <= top <= value * 2.500_001
    assert re.fullmatch(r"[125]0*|0\.0*[125]|1", f"{round_above(value):.12f}".rstrip("0").rstrip("."))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (0.5, "0.5 s"), (50, "50 s"), (200, "3.3 min"), (7200, "2 h")],
)
def test_seconds_tick_formats_seconds_to_hours(value: float, text: str) -> None:
    assert seconds_tick(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.5, "0.5"), (500, "500"), (20_000, "20 k"), (2.5e6, "2.5 M"), (3e9, "3 G")]
)
def test_count_tick_formats_with_decimal_prefixes(value: float, text: str) -> None:
    assert count_tick(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (1 << 41, "2 TiB")])
def test_bytes_text_formats_with_binary_prefixes(value: float, text: str) -> None:
    assert bytes_text(value) == text


# Samples of the last hour.


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


# The page for people: everything is escaped, spans and sizes read well.


def test_page_escapes_texts_and_shows_alarms_first() -> None:
    page = render(
        "pump <1>",
        "a & b",
        facts=[Fact("lag", "<b>", "note", Mood.BAD)],
        tables=[Table("t", ("x",), [("<i>",)]), Table("e", ("x",), [], "nothing here")],
        alarms=[Alarm("<script>")],
    )
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "pump &lt;1&gt;" in page and "a &amp; b" in page
    assert "&lt;i&gt;" in page and "nothing here" in page
    assert page.index("&lt;script&gt;") < page.index('class="facts"')


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.24, "0.2 s"), (59.94, "59.9 s"), (95, "1 min 35 s"), (3700, "1 h 1 min"), (90000, "1 d 1 h")],
)
def test_span_text_formats_seconds_to_days(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_charts_stand_between_facts_and_tables() -> None:
    chart = Chart("lag & more", [(10.0, 1.0), (0.0, 2.0)], seconds_tick)
    page = render("pump", "", facts=[Fact("lag", "2 s")], tables=[Table("t", ("x",), [("1",)])], charts=[chart])
    assert page.index('class="facts"') < page.index("<figcaption>lag &amp; more") < page.index("<h2>t</h2>")
    assert 'class="charts"' not in render("pump", "", facts=[])


def test_page_wraps_only_prose_columns() -> None:
    table = Table(
        "t",
        ("state", "age", "problem"),
        [("online", "1 s", "a long text")],
        "",
        frozenset({"age"}),
        frozenset({"problem"}),
    )
    page = render("pump", "", facts=[], tables=[table])
    cells = (
        ' data-name="state">online',
        ' class="right" data-name="age">1 s',
        ' class="prose" data-name="problem">a long text',
    )
    assert "".join(f"<td{cell}</td>" for cell in cells) in page
