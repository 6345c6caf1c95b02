"""Patterns of tables, in the syntax of TiDB's table-filter (TiCDC, BR, Lightning).

    db.tbl        one table                         !db.tbl       not this one; the last pattern that matches decides
    db.*  db.t?   any characters, one character     db.t[0-9]     one of these characters, [!0-9]: none of them
    `a.b`."c d"   names with other characters       /^t[0-9]+$/   a regular expression, searched for

A name has letters, digits, `_`, `$` and characters beyond ASCII; any other must be in quotes or after a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from drainer.dispatch.errors import DispatchConfigError

_EXPECTED = "expected database.table, such as 'db.*'"

_PLAIN = re.compile(r"[A-Za-z0-9_$\u0080-\U0010ffff]+")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"|`((?:[^`]|``)*)`')
_REGEX = re.compile(r"/((?:[^/\\]|\\.)*)/", re.DOTALL)
_CLASS = re.compile(r"\[(!?)((?:[^\]\\]|\\.)+)\]")
_WILD = {"*": "(?s:.*)", "?": "(?s:.)"}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One pattern. Its `repr` is part of what determines how a batch is split (rule 16), so it has both patterns
    complete: Python's own `repr` of a pattern ends after 200 characters."""

    is_positive: bool
    schema: re.Pattern[str]
    table: re.Pattern[str]

    def __repr__(self) -> str:
        return f"_Pattern({self.is_positive}, {self.schema.pattern!r}, {self.table.pattern!r})"


@dataclass(frozen=True, slots=True)
class TablePatterns:
    """A list of patterns. The last one that matches a table decides. A table that no pattern matches is not
    selected."""

    patterns: tuple[_Pattern, ...]
    ignores_case: bool

    @classmethod
    def parse(cls, patterns: Iterable[str], *, ignores_case: bool = True) -> TablePatterns:
        """Parse the patterns. Raises DispatchConfigError naming the pattern."""
        stripped = [pattern.strip() for pattern in patterns]
        made = tuple(_parsed(one, ignores_case) for one in stripped if one and not one.startswith("#"))
        if not made:
            raise DispatchConfigError("a dispatch rule has no matcher: give patterns of tables, such as 'db.*'")
        return cls(made, ignores_case)

    def match(self, schema: str, table: str) -> bool:
        if self.ignores_case:
            schema, table = schema.lower(), table.lower()
        for pattern in reversed(self.patterns):
            if pattern.schema.search(schema) and pattern.table.search(table):
                return pattern.is_positive
        return False


def _parsed(pattern: str, ignores_case: bool) -> _Pattern:
    is_positive = not pattern.startswith("!")
    text = pattern if is_positive else pattern[1:]
    what = f"matcher {pattern!r}"
    if text.startswith("@"):
        raise DispatchConfigError(f"{what}: patterns cannot be read from another file")
    schema, at = name_pattern(text, 0, what, ignores_case=ignores_case)
    if schema is None or not text.startswith(".", at):
        raise DispatchConfigError(f"{what}: {_EXPECTED}")
    table, at = name_pattern(text, at + 1, what, ignores_case=ignores_case)
    if table is None:
        raise DispatchConfigError(f"{what}: {_EXPECTED}")
    if at != len(text):
        raise DispatchConfigError(unexpected(what, text[at]))
    return _Pattern(is_positive, schema, table)


def name_pattern(text: str, at: int, what: str, *, ignores_case: bool) -> tuple[re.Pattern[str] | None, int]:
    """Parse the pattern of the name that begins at `at`. Return the pattern, None if the name is missing, and where it
    ends: at a point or at the end of the text, unless the text is invalid. Raises DispatchConfigError whose text begins
    with `what`."""
    lowered = str.lower if ignores_case else str
    found = _REGEX.match(text, at)
    if found is not None:
        return _compiled(found[1], what, re.IGNORECASE if ignores_case else 0), found.end()
    begin, parts = at, []
    while at < len(text) and text[at] != ".":
        plain, quoted, chars = _PLAIN.match(text, at), _QUOTED.match(text, at), _CLASS.match(text, at)
        if plain is not None:
            parts.append(re.escape(lowered(plain[0])))
            at = plain.end()
        elif quoted is not None:
            name = quoted[1].replace('""', '"') if quoted[1] is not None else quoted[2].replace("``", "`")
            parts.append(re.escape(lowered(name)))
            at = quoted.end()
        elif chars is not None:
            parts.append(f"[{'^' * bool(chars[1])}{_class(lowered(chars[2]))}]")
            at = chars.end()
        elif text[at] in _WILD:
            parts.append(_WILD[text[at]])
            at += 1
        elif text[at] == "\\" and at + 1 < len(text):
            parts.append(re.escape(lowered(text[at + 1])))
            at += 2
        else:
            raise DispatchConfigError(unexpected(what, text[at]))
    if at == begin:
        return None, at
    return _compiled(f"\\A{''.join(parts)}\\Z", what, 0), at


def _class(chars: str) -> str:
    """Return the contents of a wildcard's class for a regular expression: `-` makes ranges, a backslash quotes the next
    character."""
    return "".join(re.escape(one.lstrip("\\") or "\\") if one != "-" else "-" for one in re.findall(r"\\.|.", chars))


def _compiled(text: str, what: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(text, flags)
    except re.error as error:
        raise DispatchConfigError(f"{what}: {error}") from None


def unexpected(what: str, char: str) -> str:
    """Return the text of the error for an unexpected character."""
    return f"{what}: unexpected {char!r}; put names with such characters in backquotes"
