"""The charts of status pages: values of the last hour, kept in memory, and line charts as SVG text.

They need no JavaScript; the page's style sheet gives the colours.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

INTERVAL_S = 10.0
SPAN_S = 3600.0
WIDTH, HEIGHT = 480, 120
LEFT, RIGHT, TOP, BOTTOM = 72, 8, 12, 20
GAP_S = 3 * INTERVAL_S
STEPS = (1.0, 2.0, 5.0, 10.0)
# Lengths of the time axis. Short ones let a program that has just started fill its charts.
SPANS_S = (300.0, 900.0, 1800.0, SPAN_S)


class History:
    """Samples of the last SPAN_S seconds, at least INTERVAL_S apart. Times are in seconds of a monotonic clock."""

    def __init__(self, *, interval_s: float = INTERVAL_S, span_s: float = SPAN_S) -> None:
        self.interval_s = interval_s
        self.span_s = span_s
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()
        self._counters: dict[str, float] = {}
        self._counted_s = 0.0

    def due(self, now_s: float) -> bool:
        """Return whether it is time for the next sample."""
        return not self._samples or now_s - self._samples[-1][0] >= self.interval_s

    def add(self, now_s: float, gauges: Mapping[str, float], counters: Mapping[str, float] = {}) -> None:
        """Add a sample.

        `gauges` are stored as they are. `counters` only increase; their rate per second since the previous sample is
        stored. A counter that decreased has been restarted and counts from 0. The first sample has no rates.
        """
        values = dict(gauges)
        passed_s = now_s - self._counted_s
        for name, total in counters.items():
            before = self._counters.get(name)
            if before is not None and passed_s > 0:
                values[name] = (total - before if total >= before else total) / passed_s
            self._counters[name] = total
        self._counted_s = now_s
        self._samples.append((now_s, values))
        while self._samples[0][0] < now_s - self.span_s:
            self._samples.popleft()

    def series(self, name: str, now_s: float) -> list[tuple[float, float]]:
        """Return (seconds before now, value) of each sample that contains `name`, oldest first."""
        return [(now_s - moment_s, values[name]) for moment_s, values in self._samples if name in values]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `points`: (seconds before now, value ≥ 0), oldest first. `text`: formats a value with its unit.
    `step_of`: 1000, or 1024 for bytes, so that the axis shows round numbers.
    """

    title: str
    points: Sequence[tuple[float, float]]
    text: Callable[[float], str]
    step_of: int = 1000

    @property
    def span_s(self) -> float:
        """The length of the time axis: the smallest of SPANS_S that contains every point."""
        oldest_s = max((ago_s for ago_s, _ in self.points), default=0.0)
        return next((span_s for span_s in SPANS_S if oldest_s <= span_s), SPANS_S[-1])


def svg(chart: Chart) -> str:
    """Return the chart as an <svg> element, from 0 to a round number above the largest value.

    Samples further apart than GAP_S are not connected: the program did not run, or was suspended.
    """
    top = round_above(max((value for _, value in chart.points), default=0.0), chart.step_of)
    said = _said(chart)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}"><title>{escape(said)}</title>',
        *(_line_at(share, chart.text(top * share)) for share in (0.0, 0.5, 1.0)),
        *(_moment(share, chart.span_s) for share in (0.0, 0.5, 1.0)),
    ]
    for run in _runs(chart.points):
        places = [_place(ago_s, value, top, chart.span_s) for ago_s, value in run]
        first, last = places[0][0], places[-1][0]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        base = HEIGHT - BOTTOM
        parts.append(f'<polygon class="area" points="{first:.1f},{base} {line} {last:.1f},{base}"/>')
        parts.append(f'<polyline class="line" points="{line}"/>')
    return "".join([*parts, "</svg>"])


def round_above(value: float, step_of: int = 1000) -> float:
    """Return the smallest round number that is not below `value`; 1 for values up to 0.

    Round numbers are 1, 2 and 5 times powers of 10, or with `step_of` 1024 powers of 2.
    """
    if not math.isfinite(value) or value <= 0:
        return 1.0
    if step_of == 1024:
        return float(2.0 ** math.ceil(math.log2(value) - 1e-9))
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in STEPS if value <= step * power * (1 + 1e-9))


def _said(chart: Chart) -> str:
    if not chart.points:
        return f"{chart.title}: no values yet"
    values = [value for _, value in chart.points]
    return f"{chart.title}: now {chart.text(values[-1])}, highest {chart.text(max(values))}"


def _runs(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = []
    for point in points:
        if runs and runs[-1][-1][0] - point[0] <= GAP_S:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _place(ago_s: float, value: float, top: float, span_s: float) -> tuple[float, float]:
    share = min(1.0, max(0.0, ago_s / span_s))
    height = min(1.0, max(0.0, value / top))
    return WIDTH - RIGHT - share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - height * (HEIGHT - TOP - BOTTOM)


def _line_at(share: float, text: str) -> str:
    y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _moment(share: float, span_s: float) -> str:
    """Return a label of the time axis. `share` 0 is now."""
    x = WIDTH - RIGHT - share * (WIDTH - LEFT - RIGHT)
    text = "now" if share == 0 else f"−{share * span_s / 60:g} min"
    anchor = {0.0: "end", 1.0: "start"}.get(share, "middle")
    return f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{text}</text>'


def seconds_tick(value: float) -> str:
    """Format seconds: 0.5 → 0.5 s, 50 → 50 s, 200 → 3.3 min, 7200 → 2 h."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if value >= 2 * size:
            return f"{value / size:.2g} {unit}"
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def count_tick(value: float) -> str:
    """Format a number: 0.5 → 0.5, 500 → 500, 20000 → 20 k."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def bytes_text(value: float) -> str:
    """Format bytes: 512 → 512 B, 2048 → 2 KiB."""
    size, unit = value, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
