"""The page for people: everything is escaped, spans and sizes read well."""

from __future__ import annotations

import pytest
from binlog.runtime.chart import Chart, seconds_tick
from binlog.runtime.page import Alarm, Fact, Mood, Table, bytes_text, render, span_text


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


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB"), (1 << 52, "4096.0 TiB")]
)
def test_bytes_text_formats_with_binary_prefixes(count: int, text: str) -> None:
    assert bytes_text(count) == text


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
