"""Patterns of tables, in the syntax of TiDB's table-filter (TiCDC, BR, Lightning). Pure.

    db.tbl        one table                         !db.tbl       not this one; the last pattern that matches decides
    db.*  db.t?   any characters, one character     db.t[0-9]     one of these characters, [!0-9]: none of them
    `a.b`."c d"   names with other characters       /^t[0-9]+$/   a regular expression, searched for

A name has letters, digits, `_`, `$` and characters beyond ASCII; any other must be in quotes or after a backslash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drainer.schema.name_pattern import (
    Name,
    Pattern,
    PatternError,
    lower,
    matches_every_name,
    name_pattern,
    patterns_of,
    unexpected,
)

_EXPECTED = "expected database.table, such as 'db.*'"


@dataclass(frozen=True, slots=True)
class TablePatterns:
    """A list of patterns. The last one that matches a table decides. A table that no pattern matches is not
    selected."""

    patterns: tuple[Pattern, ...]
    ignores_case: bool

    @classmethod
    def parse(
        cls, patterns: Iterable[str], *, ignores_case: bool = True, whose: str = "dispatch rule", what: str = "matcher"
    ) -> TablePatterns:
        """Parse the patterns. `what`, `whose`: words for a pattern and for the owner of the list, for error texts.
        Raises PatternError for an invalid pattern and for an empty list."""
        made = patterns_of(patterns, what, None, lambda text, named: _names(text, named, ignores_case))
        if not made:
            raise PatternError(f"a {whose} has no {what}: give patterns of tables, such as 'db.*'")
        return cls(made, ignores_case)

    def match(self, schema: str, table: str) -> bool:
        names = (lower(schema), lower(table)) if self.ignores_case else (schema, table)
        return next((one.is_positive for one in reversed(self.patterns) if one.match(*names)), False)

    def match_schema(self, schema: str) -> bool:
        """Return whether a DDL of a database is selected. As in TiDB's table-filter, it is if the patterns may select
        a table of that database. A pattern with `!` excludes a database only if it excludes all its tables."""
        name = lower(schema) if self.ignores_case else schema
        for one in reversed(self.patterns):
            if one.match(name) and (one.is_positive or matches_every_name(one.names[1])):
                return one.is_positive
        return False


def _names(text: str, named: str, ignores_case: bool) -> tuple[Name, ...]:
    schema, at = name_pattern(text, 0, named, ignores_case=ignores_case)
    if schema is None or not text.startswith(".", at):
        raise PatternError(f"{named}: {_EXPECTED}")
    table, at = name_pattern(text, at + 1, named, ignores_case=ignores_case)
    if table is None:
        raise PatternError(f"{named}: {_EXPECTED}")
    if at != len(text):
        raise PatternError(unexpected(named, text[at]))
    return schema, table
