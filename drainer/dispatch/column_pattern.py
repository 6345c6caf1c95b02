"""Patterns of columns, in the syntax of TiDB's column-filter, which TiCDC's column selectors use.

    name   *   c?   c[0-9]   `a b`   /^c[0-9]+$/     columns of these names, as in table_pattern.py
    !name                                            not this one; the last pattern that matches decides

A column that no pattern matches is not selected. Patterns ignore case, as in TiDB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from drainer.dispatch.errors import DispatchConfigError
from drainer.dispatch.table_pattern import lower, name_pattern, unexpected


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One pattern. Its `repr` has the complete pattern, as in table_pattern: it is part of what determines how a batch
    is split."""

    is_positive: bool
    name: re.Pattern[str]

    def __repr__(self) -> str:
        return f"_Pattern({self.is_positive}, {self.name.pattern!r})"


@dataclass(frozen=True, slots=True)
class ColumnPatterns:
    """A list of patterns. The last one that matches a column decides. A column that no pattern matches is not
    selected."""

    patterns: tuple[_Pattern, ...]

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> ColumnPatterns:
        """Parse the patterns. Raises DispatchConfigError naming the pattern."""
        stripped = [pattern.strip(" \t") for pattern in patterns]
        return cls(tuple(_parsed(one) for one in stripped if one and not one.startswith("#")))

    def match(self, column: str) -> bool:
        lowered = lower(column)
        return next((one.is_positive for one in reversed(self.patterns) if one.name.search(lowered)), False)


def _parsed(pattern: str) -> _Pattern:
    is_positive = not pattern.startswith("!")
    text = pattern if is_positive else pattern[1:]
    what = f"column pattern {pattern!r}"
    if pattern.startswith("@"):
        raise DispatchConfigError(f"{what}: patterns cannot be read from another file")
    name, at = name_pattern(text, 0, what, ignores_case=True)
    if name is None and at == len(text):
        raise DispatchConfigError(f"{what}: expected the name of a column, such as 'name' or '*'")
    if name is None or at != len(text):
        raise DispatchConfigError(unexpected(what, text[at]))
    return _Pattern(is_positive, name)
