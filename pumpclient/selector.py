"""Which pump gets the next prewrite: upstream's `range` or `hash`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Selector(Protocol):
    """Chooses among the available pumps."""

    name: str

    def select(self, available: Sequence[str], *, start_ts: int, tries: int) -> str | None:
        """An id out of `available` (in its stable order), or None when it is empty. `tries` counts from 0."""
        ...


class RangeSelector:
    """Round robin. The cursor starts over when the list changes, so that nobody inherits another list's place."""

    name = "range"

    def __init__(self) -> None:
        self._list: tuple[str, ...] = ()
        self._next = 0

    def select(self, available: Sequence[str], *, start_ts: int, tries: int) -> str | None:
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

    def select(self, available: Sequence[str], *, start_ts: int, tries: int) -> str | None:
        if not available:
            return None
        return available[(start_ts + tries) % len(available)]


STRATEGIES: dict[str, type[RangeSelector] | type[HashSelector]] = {"range": RangeSelector, "hash": HashSelector}


def make_selector(strategy: str) -> tuple[Selector, bool]:
    """The selector, and whether the name was known: an unknown one means range, and deserves a warning."""
    made = STRATEGIES.get(strategy)
    return (made() if made else RangeSelector()), made is not None
