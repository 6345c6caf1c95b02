"""Selects the pump for a prewrite. Pure, except for the random numbers of `score`.

`range` and `hash` are the original's strategies. The original names `score` and `label`, but does not implement them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

STRATEGIES = ("range", "hash", "score", "label")


class Selector(Protocol):
    """Chooses among the available pumps."""

    name: str

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        """Return an id from `available` (which is in a stable order), or None if it is empty.

        `tries` counts from 0. `tried`: pumps that were sent this prewrite and did not acknowledge it.
        """
        ...


class RangeSelector:
    """Round robin. The position is reset when the list of pumps changes."""

    name = "range"

    def __init__(self) -> None:
        self._list: tuple[str, ...] = ()
        self._next = 0

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        current = tuple(available)
        if current != self._list:
            self._list, self._next = current, 0
        if not current:
            return None
        chosen = current[self._next % len(current)]
        self._next = (self._next + 1) % len(current)
        return chosen


class HashSelector:
    """Index (start_ts + tries) mod n: a transaction always begins at the same pump, then takes the next one."""

    name = "hash"

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        if not available:
            return None
        return available[(start_ts + tries) % len(available)]


class ScoreSelector:
    """Random choice in proportion to the weights. Each process has its own random numbers, so writers that see the same
    scores do not all choose the same pump. A transaction tries no pump twice before it has tried all.
    """

    name = "score"

    def __init__(self, weights: Callable[[Sequence[str]], Sequence[float]], dice: random.Random | None = None) -> None:
        self._weights = weights
        self._dice = dice or random.Random()

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        left = [pump for pump in available if pump not in tried] or list(available)
        if not left:
            return None
        return self._dice.choices(left, self._weights(left))[0]


class LabelSelector:
    """The choice of `score`, among the pumps that have all of the writer's labels.

    If none of these is available, or all were tried in vain, other pumps are chosen. A binlog on a pump in another
    place is better than none, because TiDB stops when it cannot write its binlog. For a writer that prefers to stop,
    the pool itself is limited to pumps with its labels.
    """

    name = "label"

    def __init__(self, among: ScoreSelector, has_labels: Callable[[str], bool]) -> None:
        self._among = among
        self._has_labels = has_labels

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        ours = [pump for pump in available if self._has_labels(pump)]
        if all(pump in tried for pump in ours):
            others = [pump for pump in available if pump not in ours]
            if not ours or not all(pump in tried for pump in others):
                ours = others
        return self._among.select(ours, start_ts=start_ts, tries=tries, tried=tried)


def make_selector(
    strategy: str,
    *,
    weights: Callable[[Sequence[str]], Sequence[float]],
    has_labels: Callable[[str], bool] = lambda pump: True,
) -> tuple[Selector, bool]:
    """Return the selector, and whether the strategy is known. An unknown strategy gets the range selector."""
    if strategy == "hash":
        return HashSelector(), True
    if strategy == "score":
        return ScoreSelector(weights), True
    if strategy == "label":
        return LabelSelector(ScoreSelector(weights), has_labels), True
    return RangeSelector(), strategy == "range"
