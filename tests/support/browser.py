"""Status pages in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.support.servers import missing

PHONE, DESK = (360, 740), (1280, 900)
ANSWER_MS = 240_000  # instead of Playwright's 30 s, which a busy machine may need to start a browser
# Cells that hold a name, a state or an address are one line each: one rectangle for their text.
BROKEN_CELLS = """() => [...document.querySelectorAll('td:not(.prose), th')].filter(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map(box => box.top)).size > 1;
}).map(cell => cell.textContent)"""
# Words of facts and alarms stay whole: a word that is cut has rectangles in two lines.
CUT_WORDS = """() => {
  const cut = [];
  for (const place of document.querySelectorAll('.value, .name, .note, h1')) {
    for (const node of place.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE) continue;
      for (const word of node.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) cut.push(word[0]);
      }
    }
  }
  return cut;
}"""

# Facts, alarms and cells with a text that are not shown, reach beyond the window or their own box, or, where the heads
# of the columns are not shown, have no label of their own.
HIDDEN = """() => [...document.querySelectorAll('td, .fact, .name, .value, .note, .alarm, figcaption, h1, h2')]
.filter(cell => {
  if (!cell.textContent.trim()) return false;
  const range = document.createRange();
  range.selectNodeContents(cell);
  const boxes = [...range.getClientRects(), cell.getBoundingClientRect()];
  const head = cell.closest('table')?.querySelector('th').getBoundingClientRect();
  const label = getComputedStyle(cell, '::before');
  return boxes.some(box => !box.width || !box.height || box.left < 0 || box.right > innerWidth + 0.5)
    || cell.scrollWidth > cell.clientWidth + 1
    || (head && !head.height && (label.display === 'none' || label.content !== JSON.stringify(cell.dataset.name)));
}).map(cell => cell.textContent)"""


@dataclass(frozen=True, slots=True)
class Look:
    """A page as it was shown. `width`: how far its content reaches; `hidden`: texts out of sight; `background`: colour
    of its body."""

    width: int
    hidden: list[str]
    broken: list[str]
    cut: list[str]
    charts: int
    lines: int
    background: str
    problems: list[str]


@contextlib.contextmanager
def running_chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        missing("chromium is not installed: scripts/need.sh chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            timeout=ANSWER_MS,
        )
        try:
            yield browser
        finally:
            browser.close()


def look(browser: Browser, url: str, screenshot: Path, *, size: tuple[int, int], dark: bool) -> Look:
    """Open the page, and keep a picture of all of it."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", java_script_enabled=True
    )
    context.set_default_timeout(ANSWER_MS)
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(url) else problems.append(f"asks {asked.url}"))
    page.goto(url, wait_until="load")
    found = Look(
        width=page.evaluate("() => document.documentElement.scrollWidth"),
        hidden=page.evaluate(HIDDEN),
        broken=page.evaluate(BROKEN_CELLS),
        cut=page.evaluate(CUT_WORDS),
        charts=page.evaluate("() => document.querySelectorAll('figure svg').length"),
        lines=page.evaluate("() => document.querySelectorAll('figure svg polyline').length"),
        background=page.evaluate("() => getComputedStyle(document.body).backgroundColor"),
        problems=problems,
    )
    page.screenshot(path=str(screenshot), full_page=True)
    context.close()
    return found
