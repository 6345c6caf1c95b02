"""Selects the pump of the next prewrite: the original's strategies `range` and `hash`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Selector(Protocol):
    """Chooses among the available pumps."""

    name: str

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        """An id out of `available` (in its stable order), or None when it is empty. `tries` counts from 0."""
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


STRATEGIES: dict[str, type[RangeSelector] | type[HashSelector]] = {"range": RangeSelector, "hash": HashSelector}


def make_selector(strategy: str) -> tuple[Selector, bool]:
    """The selector, and whether the name was known: for an unknown one the range selector."""
    made = STRATEGIES.get(strategy)
    return (made() if made else RangeSelector()), made is not None
