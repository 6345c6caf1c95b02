"""HTML status pages without scripts, refreshed every few seconds, and their charts: values of the last hour, as SVG."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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


REFRESH_S = 3


class Mood(StrEnum):
    """The severity of a fact, shown as its colour."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Fact:
    """A value in a box, with `note` in small print."""

    name: str
    value: str
    note: str = ""
    mood: Mood = Mood.PLAIN


@dataclass(frozen=True, slots=True)
class Alarm:
    """A message that requires an operator's action."""

    text: str
    mood: Mood = Mood.BAD


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts. `empty`: the text shown if there are no rows.

    `right`: names of columns that hold numbers. `prose`: names of columns with texts of any length, which are wrapped.
    All other columns stay on one line.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str = "none"
    right: frozenset[str] = frozenset()
    prose: frozenset[str] = frozenset()


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2330;--dim:#667085;--line:#e4e7ec;--box:#fff;--back:#f6f7f9;
--mark:#175cd3;--good:#067647;--warn:#b54708;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--line:#30384a;--box:#1a2130;--back:#11161f;
--mark:#84adff;--good:#47cd89;--warn:#fdb022;--bad:#f97066}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 40px}
h1{font-size:22px;margin:0;overflow-wrap:anywhere}h2{font-size:15px;margin:28px 0 8px}
.sub{color:var(--dim);margin:2px 0 18px;overflow-wrap:anywhere}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,190px),1fr));gap:12px}
.fact,table,.alarm{background:var(--box);border:1px solid var(--line);border-radius:8px}
.fact{padding:12px 14px;min-width:0}.name,.note{color:var(--dim);font-size:12.5px}.note{overflow-wrap:break-word}
.value{font-size:21px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:break-word}
.alarm{padding:10px 14px;margin:0 0 12px;border-left:4px solid;overflow-wrap:anywhere}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.scroll{overflow-x:auto}table{border-collapse:separate;border-spacing:0;width:100%;font-size:13.5px}
th,td{text-align:left;padding:7px 12px;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:500}tr:last-child td{border-bottom:0}
td{font-variant-numeric:tabular-nums}th,td{white-space:nowrap}.right{text-align:right}
td.prose{white-space:normal;overflow-wrap:anywhere;min-width:220px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:12px;margin-top:12px}
figure{margin:0;padding:10px 12px 6px;min-width:0;background:var(--box);border:1px solid var(--line);border-radius:8px}
figcaption{color:var(--dim);font-size:12.5px}svg{display:block;width:100%;height:auto}
.grid{stroke:var(--line)}.tick{fill:var(--dim);font-size:11px}
.line{fill:none;stroke:var(--mark);stroke-width:1.6;stroke-linejoin:round}.area{fill:var(--mark);opacity:.14}
@media(max-width:560px){main{padding:20px 12px 28px}.tick{font-size:15px}.facts{grid-template-columns:1fr 1fr;gap:8px}
.fact{padding:10px}.value{font-size:17px}.note{font-size:12px}
tr{display:block;padding:6px 0;border-bottom:1px solid var(--line)}tr:last-child{border-bottom:0}
tr:first-child{display:none}
td,td.right,td.prose{display:flex;flex-wrap:wrap;gap:0 12px;justify-content:space-between;padding:3px 12px;border:0;
text-align:right;white-space:normal;overflow-wrap:anywhere;min-width:0}td:empty{display:none}
td::before{content:attr(data-name);color:var(--dim);white-space:nowrap}}
footer{color:var(--dim);font-size:12.5px;margin-top:28px}a{color:inherit}
"""


def render(
    title: str,
    subtitle: str,
    *,
    facts: Sequence[Fact],
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    alarms: Sequence[Alarm] = (),
    links: Sequence[str] = ("/status", "/metrics"),
) -> str:
    """Return the complete page. All texts are escaped here."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="refresh" content="{REFRESH_S}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<link rel="icon" href="data:,">',  # so that browsers do not request /favicon.ico
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f'<h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p>',
        *(f'<p class="alarm {alarm.mood}">{escape(alarm.text)}</p>' for alarm in alarms),
        '<div class="facts">',
        *map(_fact, facts),
        "</div>",
        '<div class="charts">' if charts else "",
        *(f"<figure><figcaption>{escape(chart.title)}</figcaption>{svg(chart)}</figure>" for chart in charts),
        "</div>" if charts else "",
        *map(_table, tables),
        "<footer>" + " · ".join(f'<a href="{escape(link)}">{escape(link)}</a>' for link in links),
        f" · refreshed every {REFRESH_S} s</footer></main></body></html>\n",
    ]
    return "\n".join(parts)


def _fact(fact: Fact) -> str:
    note = f'<div class="note">{escape(fact.note)}</div>' if fact.note else ""
    return (
        f'<div class="fact"><div class="name">{escape(fact.name)}</div>'
        f'<div class="value {fact.mood}">{escape(fact.value)}</div>{note}</div>'
    )


def _table(table: Table) -> str:
    if not table.rows:
        return f'<h2>{escape(table.title)}</h2><p class="sub">{escape(table.empty)}</p>'
    kinds = ["right" if name in table.right else "prose" if name in table.prose else "" for name in table.columns]
    marks = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in zip(table.columns, marks, strict=True))
    # In a narrow window a row becomes a list of names and values, so that no column is out of sight.
    marks = [f'{mark} data-name="{escape(name)}"' for name, mark in zip(table.columns, marks, strict=True)]
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<h2>{escape(table.title)}</h2><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def span_text(seconds: float) -> str:
    """Format a duration: 0.24 → 0.2 s, 95 → 1 min 35 s, 90000 → 1 d 1 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, name, rest, rest_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // rest} {rest_name}"
    return f"{whole} s"
