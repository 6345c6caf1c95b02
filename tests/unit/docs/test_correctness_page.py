"""docs/correctness.md names tests: they are there, and every rule has one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "correctness.md").read_text()
RULES = 20
FOUND_BY_USE = range(21, 41)


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 2 * RULES
    for file, test in named:
        text = (ROOT / file).read_text()
        assert not test or re.search(rf"^(    )?(async )?def {test}\(", text, re.MULTILINE), f"{file}::{test}"


def test_every_rule_has_a_paragraph_with_a_test() -> None:
    found = re.findall(r"^\*\*(\d+)\..*?(?=^\*\*\d+\.|^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    later = [number for number in FOUND_BY_USE if str(number) in found]
    assert [int(number) for number in found] == [*range(1, RULES + 1), *later]
    paragraphs = re.split(r"^\*\*\d+\.", PAGE, flags=re.MULTILINE)[1:]
    assert all("`tests/" in paragraph for paragraph in paragraphs)


def test_the_table_has_the_promise_of_every_rule() -> None:
    titles = re.findall(r"^\*\*(\d+)\. (.*?)\.?\*\*$", PAGE, re.MULTILINE)
    assert re.findall(r"^\| (\d+) \| (.*?) \|", PAGE, re.MULTILINE) == titles


def test_pages_cite_a_rule_with_its_subject() -> None:
    """In the words of the table: a number alone says nothing."""
    subjects = dict(re.findall(r"^\| (\d+) \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "pump" / "FORMAT.md"]
    for page in pages:
        text = re.sub(r"\s+", " ", re.sub(r"`[^`]*`|\(correctness\.md\)", "", page.read_text()))
        for found in re.finditer(r"\brule (\d+)", text):
            cited = text[found.end() :].replace(" in [correctness.md]", "").lstrip(" :(")
            assert cited.startswith(subjects[found[1]]), f"{page.name}: {text[found.start() : found.end() + 60]}"
