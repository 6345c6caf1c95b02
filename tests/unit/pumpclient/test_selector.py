"""Selection strategies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpclient.pool import HashSelector, LabelSelector, RangeSelector, ScoreSelector, make_selector

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=6)


def test_range_starts_over_when_the_list_changes() -> None:
    selector = RangeSelector()
    assert selector.select(("a", "b", "c"), start_ts=1, tries=0) == "a"
    assert selector.select(("a", "b", "c"), start_ts=1, tries=0) == "b"
    assert selector.select(("a", "c"), start_ts=1, tries=0) == "a"
    assert selector.select((), start_ts=1, tries=0) is None
    assert selector.select(("a", "c"), start_ts=1, tries=0) == "a"


@given(NAMES, st.integers(0, 2**62), st.integers(0, 20))
def test_hash_selector_depends_only_on_start_ts_and_tries(names: list[str], start_ts: int, tries: int) -> None:
    """Whichever process asks, and whatever it asked before; each retry meets the next pump."""
    available = tuple(sorted(names))
    chosen = HashSelector().select(available, start_ts=start_ts, tries=tries)
    if not available:
        assert chosen is None
        return
    assert chosen == available[(start_ts + tries) % len(available)]
    everybody = {HashSelector().select(available, start_ts=start_ts, tries=n) for n in range(len(available))}
    assert everybody == set(available)


@given(NAMES.filter(bool), st.integers(1, 50))
def test_range_selector_chooses_each_pump_equally_often(names: list[str], rounds: int) -> None:
    selector = RangeSelector()
    counts = Counter(selector.select(names, start_ts=0, tries=0) for _ in range(rounds * len(names)))
    assert set(counts.values()) == {rounds}


def test_make_selector_knows_four_names_and_falls_back_to_range() -> None:
    def made(name: str) -> tuple[str, bool]:
        selector, known = make_selector(name, weights=alike)
        return selector.name, known

    assert [made(name) for name in ("range", "hash", "score", "label")] == [
        ("range", True),
        ("hash", True),
        ("score", True),
        ("label", True),
    ]
    assert made("best") == ("range", False)


# --- score ------------------------------------------------------------------------------------------------------------


def alike(pumps: Sequence[str]) -> list[float]:
    return [1.0] * len(pumps)


def test_score_chooses_as_often_as_weights_say() -> None:
    weights = {"a": 100.0, "b": 300.0, "c": 600.0}
    selector = ScoreSelector(lambda pumps: [weights[pump] for pump in pumps], random.Random(1))
    counts = Counter(selector.select(("a", "b", "c"), start_ts=0, tries=0) for _ in range(10_000))
    assert {pump: round(count / 10_000, 1) for pump, count in counts.items()} == {"a": 0.1, "b": 0.3, "c": 0.6}


def test_score_selectors_with_same_weights_choose_different_pumps() -> None:
    """A thousand processes whose first write is now: each pump gets its share, none gets them all."""
    weights = {"a": 900.0, "b": 1000.0, "c": 950.0}
    first = Counter(
        ScoreSelector(lambda pumps: [weights[pump] for pump in pumps]).select(("a", "b", "c"), start_ts=1, tries=0)
        for _ in range(1000)
    )
    assert min(first.values()) > 200  # 316 are expected; so few have a chance of 1e-14


@given(NAMES, st.sets(st.text("abcdef", min_size=1, max_size=3)), st.integers())
def test_score_tries_each_pump_before_any_twice(names: list[str], tried: set[str], seed: int) -> None:
    chosen = ScoreSelector(alike, random.Random(seed)).select(names, start_ts=0, tries=1, tried=tried)
    if not names:
        assert chosen is None
    else:
        assert chosen in (set(names) - tried or set(names))


# --- label ------------------------------------------------------------------------------------------------------------


@given(NAMES, st.sets(st.text("abcdef", min_size=1, max_size=3)), st.sets(st.text("abcdef", min_size=1, max_size=3)))
def test_label_selector_prefers_untried_matching_then_other_pumps(
    names: list[str], ours: set[str], tried: set[str]
) -> None:
    selector = LabelSelector(ScoreSelector(alike), lambda pump: pump in ours)
    chosen = selector.select(names, start_ts=0, tries=1, tried=tried)
    mine, others = set(names) & ours, set(names) - ours
    for allowed in (mine - tried, others - tried, mine, others):
        if allowed:
            assert chosen in allowed
            return
    assert chosen is None


@pytest.mark.parametrize(("ours", "chosen"), [("a", "a"), ("", "abc")])
def test_label_selector_chooses_any_pump_without_matching_one(ours: str, chosen: str) -> None:
    selector = LabelSelector(ScoreSelector(alike), lambda pump: pump in ours)
    assert {selector.select("abc", start_ts=0, tries=0) for _ in range(200)} == set(chosen)
