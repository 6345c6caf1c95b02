"""A cache of what an encoder has compiled for each version of a table."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# The most entries. When the cache is full, it is emptied.
TABLES_MAX: Final = 4096


class CompiledTables(Generic[T]):
    """Caches compiled tables by `Table.key`, or a key that contains it. It is not pickled: a pickled cache is restored
    empty."""

    def __init__(self) -> None:
        self._made: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of this key. Calls `make` if there is none yet."""
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= TABLES_MAX:
                self._made.clear()
            found = self._made[key] = make()
        return found

    def __reduce__(self) -> tuple[type[CompiledTables[T]], tuple[()]]:
        return CompiledTables, ()
