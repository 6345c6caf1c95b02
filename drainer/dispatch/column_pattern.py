"""Patterns of columns, in the syntax of TiDB's column-filter, which TiCDC's column selectors use.

    name   *   c?   c[0-9]   `a b`   /^c[0-9]+$/     columns of these names, as in table_pattern.py
    !name                                            not this one; the last pattern that matches decides

A column that no pattern matches is not selected. Patterns ignore case, as in TiDB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drainer.schema.name_pattern import Name, Pattern, PatternError, lower, name_pattern, patterns_of, unexpected


@dataclass(frozen=True, slots=True)
class ColumnPatterns:
    """A list of patterns. The last one that matches a column decides. A column that no pattern matches is not
    selected."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> ColumnPatterns:
        """Parse the patterns. Raises PatternError naming the pattern."""
        return cls(patterns_of(patterns, "column pattern", " \t", _name))

    def match(self, column: str) -> bool:
        lowered = lower(column)
        return next((one.is_positive for one in reversed(self.patterns) if one.match(lowered)), False)


def _name(text: str, named: str) -> tuple[Name, ...]:
    name, at = name_pattern(text, 0, named, ignores_case=True)
    if name is None and at == len(text):
        raise PatternError(f"{named}: expected the name of a column, such as 'name' or '*'")
    if name is None or at != len(text):
        raise PatternError(unexpected(named, text[at]))
    return (name,)
