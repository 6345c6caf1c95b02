"""Line charts as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from binlog.runtime.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    bytes_tick,
    count_tick,
    round_above,
    seconds_tick,
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
def test_bytes_tick_formats_with_binary_prefixes(value: float, text: str) -> None:
    assert bytes_tick(value) == text
