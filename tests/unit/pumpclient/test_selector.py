"""Selection strategies, `range` and `hash`."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pumpclient.selector import HashSelector, RangeSelector, make_selector

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=6)


def test_range_goes_round() -> None:
    selector = RangeSelector()
    chosen = [selector.select(("a", "b", "c"), start_ts=9, tries=0) for _ in range(7)]
    assert chosen == ["a", "b", "c", "a", "b", "c", "a"]


def test_range_starts_over_when_the_list_changes() -> None:
    selector = RangeSelector()
    assert selector.select(("a", "b", "c"), start_ts=1, tries=0) == "a"
    assert selector.select(("a", "b", "c"), start_ts=1, tries=0) == "b"
    assert selector.select(("a", "c"), start_ts=1, tries=0) == "a"
    assert selector.select((), start_ts=1, tries=0) is None
    assert selector.select(("a", "c"), start_ts=1, tries=0) == "a"


@given(NAMES, st.integers(0, 2**62), st.integers(0, 20))
def test_hash_is_a_function_of_its_arguments(names: list[str], start_ts: int, tries: int) -> None:
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
def test_range_is_fair(names: list[str], rounds: int) -> None:
    selector = RangeSelector()
    counts = Counter(selector.select(names, start_ts=0, tries=0) for _ in range(rounds * len(names)))
    assert set(counts.values()) == {rounds}


def test_names() -> None:
    assert make_selector("hash")[0].name == "hash"
    assert make_selector("range")[1]
    selector, known = make_selector("score")
    assert (selector.name, known) == ("range", False)
