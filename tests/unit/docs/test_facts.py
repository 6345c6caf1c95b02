"""Ids and numbers cited in the source can be looked up: in docs/facts.md, and the rules in correctness.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FACTS = ROOT / "docs" / "facts.md"
PLACES = ("drainer", "pump", "pumpclient", "proto/binlog", "demo", "bench", "scripts", "tests", "docs", "README.md")
KINDS = {".py", ".md", ".proto", ".txt", ".sh", ".toml"}

# X-08 or P-ST-05. Three letters in front make another word (CRC-32, UTF-16), three digits too (SH-256).
_ID = re.compile(r"(?<![\w-])((?:[A-Z]{1,2}|[A-Z]-[A-Z]{2,5})-)(\d\d)(?![\w]|-\w)")
_RANGE = re.compile(_ID.pattern + r"`?\)?(?:\]\([^)]*\))?\s*(?:to|\.\.)\s*\[?`?" + _ID.pattern)
_RULES = re.compile(r"\b[Rr]ules?[\s#]+(\d+(?:(?:,? and |, | to |-)\d+)*)|(?<![a-z])rule_(\d+)")
# Sections of a document that nobody has. A number alone is one only in brackets and backquotes: (`1.12`, …).
_SECTION = re.compile(r"§ ?\d|\bspec\b|\b[Rr]ow format \d\.\d|\(`\d\.\d{1,2}`[,)]|\[Q\]")
_COMMENT = re.compile(r'"""(.*?)"""|#([^\n]*)', re.DOTALL)


def ids_in(text: str) -> set[str]:
    """The facts a text cites; a range such as `C-10 to C-14` cites all between, too."""
    found = {family + number for family, number in _ID.findall(text)}
    for family, first, other, last in _RANGE.findall(text):
        if family == other:
            found |= {f"{family}{number:02}" for number in range(int(first), int(last) + 1)}
    return found


def rules_in(text: str) -> set[int]:
    """The rules of correctness a text cites."""
    found = set()
    for listed, named in _RULES.findall(text):
        for part in re.split(r",? and |, ", listed or named):
            first, last = re.findall(r"\d+", part)[0], re.findall(r"\d+", part)[-1]
            found |= set(range(int(first), int(last) + 1))
    return found


def sections_in(text: str) -> list[str]:
    return _SECTION.findall(text)


def comments_of(path: Path, text: str) -> str:
    if path.suffix != ".py":
        return text
    return "\n".join(quoted or line for quoted, line in _COMMENT.findall(text))


@cache
def files() -> dict[Path, str]:
    """What may cite, from the root, with its text: everything written by hand but this test and the facts."""
    tops = [ROOT / place for place in PLACES]
    paths = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
    paths = [path for path in paths if path.suffix in KINDS and "_pb2" not in path.name]
    left_out = {FACTS, Path(__file__).resolve()}
    found = {path.relative_to(ROOT): path.read_text() for path in paths if path not in left_out}
    assert len(found) > 600
    return found


@cache
def facts() -> dict[str, str]:
    """Id → what the page says of it."""
    parts = re.split(r"^(#{2,3}) (.*)$", FACTS.read_text(), flags=re.MULTILINE)[1:]
    found = [(title, text.strip()) for level, title, text in zip(*[iter(parts)] * 3, strict=True) if level == "###"]
    assert len({title for title, _ in found}) == len(found), "an id stands there twice"
    return dict(found)


def test_every_cited_fact_is_in_facts_page() -> None:
    unknown = {str(path): ids - set(facts()) for path, text in files().items() if (ids := ids_in(text)) - set(facts())}
    assert not unknown, "not in docs/facts.md"


def test_every_fact_is_cited() -> None:
    cited = {each for text in files().values() for each in ids_in(text)}
    assert len(cited) > 50
    assert set(facts()) - cited == set(), "in docs/facts.md, and nobody needs it"


def test_every_fact_is_a_text_of_fitting_length() -> None:
    assert all(ids_in(each) == {each} for each in facts())
    unfit = [each for each, text in facts().items() if not (text.endswith(".") and 20 < len(text) < 800)]
    assert not unfit


def test_facts_page_cites_only_its_own_facts() -> None:
    assert ids_in(FACTS.read_text()) == set(facts())


def test_comments_cite_no_section_of_absent_document() -> None:
    found = {
        str(path): sections for path, text in files().items() if (sections := sections_in(comments_of(path, text)))
    }
    assert not found, "say the fact, or its id in docs/facts.md"


def test_every_cited_rule_is_in_correctness_page() -> None:
    page = (ROOT / "docs" / "correctness.md").read_text()
    rules = {int(number) for number in re.findall(r"^\*\*(\d+)\.", page, re.MULTILINE)}
    cited = {path: rules_in(f"{path} {text}") for path, text in files().items()}
    assert len(set().union(*cited.values())) > 20
    assert not {str(path): numbers - rules for path, numbers in cited.items() if numbers - rules}


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("see X-08.", {"X-08"}),
        ("(`P-ST-05` as it was; X-17's)", {"P-ST-05", "X-17"}),
        ("C-10 .. C-12, W-01", {"C-10", "C-11", "C-12", "W-01"}),
        ("`R-01` to `R-03`", {"R-01", "R-02", "R-03"}),
        ("([`R-01`](../docs/facts.md#r-01) to `R-03`)", {"R-01", "R-02", "R-03"}),
        ("D-CO-01 to P-CO-03", {"D-CO-01", "P-CO-03"}),
        ("TD-02", {"TD-02"}),
        ("CRC-32, CRC-32C, UTF-8, UTF-16, SHA-256, ISO-8859-15, GB-18030, 1E-05", set()),
        ('"A-1", A-100, 2024-X-08-01, x-08, RFC 9113, 8.1, TiDB 8.4, Python 3.11', set()),
    ],
)
def test_ids_in_finds_cited_facts(text: str, ids: set[str]) -> None:
    assert ids_in(text) == ids


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("correctness rule 14", {14}),
        ("(rules 9, 10, 12 and 21; see there)", {9, 10, 12, 21}),
        ("Rules 15 to 17", {15, 16, 17}),
        ("rules 1-3, then", {1, 2, 3}),
        ("rule\n    # 22", {22}),
        ("def test_rule_12_once", {12}),
        ("ruler 9, overrule 8, Rule of 7", set()),
    ],
)
def test_rules_in_finds_cited_rules(text: str, rules: set[int]) -> None:
    assert rules_in(text) == rules


@pytest.mark.parametrize("text", ["(§1.8)", "spec 3.6", "the spec's", "row format 2.6", "(`1.12`, `3.16`)", "[Q]"])
def test_sections_in_finds_cited_sections(text: str) -> None:
    assert sections_in(text)


@pytest.mark.parametrize(
    "text",
    ["(RFC 9113, 8.1.1)", "RFC 9113, section 6", "`1.50` and `1.5`", "TiDB 7.6 (8.5)", "row format v2", "inspect"],
)
def test_sections_in_ignores_other_numbers(text: str) -> None:
    assert not sections_in(text)


def test_comments_of_returns_comments_without_code() -> None:
    text = '"""Of spec\n1."""\nspec = 1  # the spec\n'
    assert len(sections_in(comments_of(Path("a.py"), text))) == 2
    assert len(sections_in(comments_of(Path("a.md"), text))) == 3
