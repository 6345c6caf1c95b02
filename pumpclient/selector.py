"""Selects the pump of the next prewrite: the original's strategies `range` and `hash`, and `score` and `label`, which
the original names and does not have. Pure, but for the dice of `score`."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

STRATEGIES = ("range", "hash", "score", "label")


class Selector(Protocol):
    """Chooses among the available pumps."""

    name: str

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        """An id out of `available` (in its stable order), or None where none may be taken. `tries` counts from 0;
        `tried` are pumps that had this prewrite and did not acknowledge it."""
        ...


class RangeSelector:
    """Round robin. The cursor is reset when the list of pumps changes."""

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
    """(start_ts + tries) mod n: the same transaction meets the same pump, and each retry the next one."""

    name = "hash"

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        if not available:
            return None
        return available[(start_ts + tries) % len(available)]


class ScoreSelector:
    """Each pump as often as its weight is large, by dice of this process: writers that see the same scores at the same
    moment do not all go to the same pump. Within one transaction no pump comes twice before each has had its turn."""

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
    """As `score`, among the pumps that have all of the writer's labels.

    Where none of these is available, or each was tried in vain, it is the others' turn: a binlog at a pump of another
    place is better than none, for TiDB stops where its binlog cannot be written. A writer that would rather stop has a
    pool of its own pumps alone.
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
    """The selector, and whether the name was known: for an unknown one the range selector."""
    if strategy == "hash":
        return HashSelector(), True
    if strategy == "score":
        return ScoreSelector(weights), True
    if strategy == "label":
        return LabelSelector(ScoreSelector(weights), has_labels), True
    return RangeSelector(), strategy == "range"
