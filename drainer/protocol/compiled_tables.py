"""What an encoder has compiled for each version of a table."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# Compiled tables are kept up to this number, then all are made again.
TABLES_MAX: Final = 4096


class CompiledTables(Generic[T]):
    """By `Table.key`, or a key that has it. Stays in the process: a pickled one is empty."""

    def __init__(self) -> None:
        self._made: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave for this key, called where it has not been yet."""
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= TABLES_MAX:
                self._made.clear()
            found = self._made[key] = make()
        return found

    def __reduce__(self) -> tuple[type[CompiledTables[T]], tuple[()]]:
        return CompiledTables, ()
