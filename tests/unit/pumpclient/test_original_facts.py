"""Every fact about the original's pump client is kept or answered: cited where the code or a test keeps it, or named
with the difference in docs/compatibility.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.docs.test_facts import ids_in

ROOT = Path(__file__).resolve().parents[3]
FACTS = [f"C-{number:02}" for number in range(1, 16)]
PLACES = ("pumpclient", "tests/unit/pumpclient", "tests/integration/pumpclient")


def in_code() -> set[str]:
    files = [file for place in PLACES for file in (ROOT / place).rglob("*.py") if file != Path(__file__)]
    return {found for file in files for found in ids_in(file.read_text())}


@pytest.mark.parametrize("fact", FACTS)
def test_fact_about_original_client_is_cited_or_explained(fact: str) -> None:
    assert fact in in_code() | ids_in((ROOT / "docs" / "compatibility.md").read_text()), fact


def test_list_of_client_facts_equals_facts_page() -> None:
    """No fact of the pump client in docs/facts.md is missing above, and none is cited that nobody knows."""
    headings = (ROOT / "docs" / "facts.md").read_text().split("## Pump client")[1].split("\n## ")[0]
    assert [line.removeprefix("### ") for line in headings.splitlines() if line.startswith("### C-")] == FACTS
    assert {found for found in in_code() if found.startswith("C-")} <= set(FACTS)
