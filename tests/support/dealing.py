"""The order of tests where several processes share them: each begins with its part of those that start servers.

`--dist worksteal` gives each process one stretch of the list, and one that is done takes over the last half of what
another has left. So each stretch begins with the dear modules and ends with quick tests, which are what is left to
take over: the processes end within seconds of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")


def dealt(items: Sequence[T], count: int, *, module: Callable[[T], Hashable], dear: Callable[[T], bool]) -> list[T]:
    """All of `items`, to be cut into `count` stretches of equal length (the first ones one shorter where it does not
    divide).

    Modules with a dear item are dealt out whole, in turn and in their order; quick ones fill the stretches up.
    """
    modules: dict[Hashable, list[T]] = {}
    for item in items:
        modules.setdefault(module(item), []).append(item)
    first = [group for group in modules.values() if any(map(dear, group))]
    quick = list(chain.from_iterable(group for group in modules.values() if not any(map(dear, group))))
    found: list[T] = []
    for number in range(count):
        hand = list(chain.from_iterable(first[number::count]))
        missing = max(0, len(items) * (number + 1) // count - len(found) - len(hand))
        found += hand + quick[:missing]
        del quick[:missing]
    return found


def longest_first(items: Sequence[T], *, module: Callable[[T], Hashable], timeout_s: Callable[[T], float]) -> list[T]:
    """All of `items`, module by module: those first that may take longest, and among them those with most tests. For
    processes that take one module after another: what is left for the last of them is short."""
    modules: dict[Hashable, list[T]] = {}
    for item in items:
        modules.setdefault(module(item), []).append(item)
    in_order = sorted(modules.values(), key=lambda group: (-max(map(timeout_s, group)), -len(group)))
    return list(chain.from_iterable(in_order))
