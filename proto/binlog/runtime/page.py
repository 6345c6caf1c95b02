"""HTML status pages without scripts, refreshed every few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from binlog.runtime.chart import Chart, svg

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
