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
_QUOTED = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`')
_REGEX = re.compile(r"/((?:[^/\\]|\\.)+)/", re.DOTALL)
# What TiDB, whose regular expressions are Go's, reads otherwise or not at all.
_POSIX_CLASS = re.compile(r"\[:\^?[a-z]+:\]")
_LETTER_ESCAPE = re.compile(r"\\([A-Za-z0-9])")
_MIXED_RANGE = re.compile(r"[A-Z]-[^A-Z]")  # has more than letters, and in lower case it would have less
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
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
    def parse(
        cls, patterns: Iterable[str], *, ignores_case: bool = True, whose: str = "dispatch rule"
    ) -> TablePatterns:
        """Parse the patterns. Raises DispatchConfigError naming the pattern, or `whose` list it is if that is empty."""
        stripped = [pattern.strip() for pattern in patterns]
        made = tuple(_parsed(one, ignores_case) for one in stripped if one and not one.startswith("#"))
        if not made:
            raise DispatchConfigError(f"a {whose} has no matcher: give patterns of tables, such as 'db.*'")
        return cls(made, ignores_case)

    def match(self, schema: str, table: str) -> bool:
        if self.ignores_case:
            schema, table = lower(schema), lower(table)
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
    lowered = lower if ignores_case else str
    found = _REGEX.match(text, at)
    if found is not None:
        return _regex(found[1], what, ignores_case=ignores_case), found.end()
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
            parts.append(_class(chars[2], what, is_negative=bool(chars[1]), ignores_case=ignores_case))
            at = chars.end()
        elif text[at] in _WILD:
            parts.append(_WILD[text[at]])
            at += 1
        elif text[at] == "\\" and at + 1 < len(text):
            _check_escapes(text[at : at + 2], what)
            parts.append(re.escape(lowered(text[at + 1])))
            at += 2
        else:
            raise DispatchConfigError(unexpected(what, text[at]))
    if at == begin:
        return None, at
    return _compiled(f"\\A{''.join(parts)}\\Z", what, 0), at


def lower(name: str) -> str:
    """Convert to lower case letter by letter, as TiDB does. Python's `lower` of a text has a separate letter for the σ
    at the end of a word."""
    return name.lower() if name.isascii() else "".join(letter.lower()[:1] for letter in name)


def _class(chars: str, what: str, *, is_negative: bool, ignores_case: bool) -> str:
    """Return a wildcard's class as a regular expression: `-` makes ranges, a backslash quotes the next character."""
    _check_escapes(chars, what)
    keeps_case = not ignores_case or _MIXED_RANGE.search(chars) is not None
    shown = chars if keeps_case else lower(chars)
    found = "".join(re.escape(one.lstrip("\\") or "\\") if one != "-" else "-" for one in re.findall(r"\\.|.", shown))
    made = f"[{'^' * is_negative}{found}]"
    return f"(?i:{made})" if ignores_case and keeps_case else made


def _check_escapes(text: str, what: str) -> None:
    """Refuse a backslash before a letter or digit outside regular expressions, where TiDB reserves it."""
    found = _LETTER_ESCAPE.search(text.replace("\\\\", ""))
    if found is not None:
        raise DispatchConfigError(f"{what}: {found[0]} is not an escape, except in a regular expression: /…/")


def _regex(text: str, what: str, *, ignores_case: bool) -> re.Pattern[str]:
    r"""Compile a regular expression with Go's meaning: \w, \d, \s and \b are ASCII only. If case is ignored, names are
    converted to lower case before they are searched."""
    posix = _POSIX_CLASS.search(text)
    if posix is not None:
        raise DispatchConfigError(f"{what}: write {posix[0]} as a range, such as [a-z]")
    if not ignores_case:
        return _compiled(text, what, re.ASCII)
    return _compiled(_NOT_ASCII.sub(lambda letters: lower(letters[0]), text), what, re.ASCII | re.IGNORECASE)


def _compiled(text: str, what: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(text, flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise DispatchConfigError(f"{what}: {error}") from None


def unexpected(what: str, char: str) -> str:
    """Return the text of the error for an unexpected character."""
    return f"{what}: unexpected {char!r}; put names with such characters in backquotes"
