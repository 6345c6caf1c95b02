"""docs/correctness.md names tests: they are there, and every rule has one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "correctness.md").read_text()
RULES = 20
FOUND_BY_USE = range(21, 32)


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
