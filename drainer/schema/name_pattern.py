"""Lists of patterns of names, in the syntax of TiDB's table-filter and column-filter: what both have in common. Pure.

An empty pattern and one that begins with `#` are left out. A pattern that begins with `!` excludes what it matches, and
the last pattern that matches decides. filter.py and dispatch/column_selector.py describe the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from binlog.errors import ConfigError

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
_EVERY_NAME = rf"\A{_WILD['*']}\Z"

Name = re.Pattern[str]
# Parse a pattern without its `!`. The second argument begins the text of errors.
Parse = Callable[[str, str], tuple[Name, ...]]


class PatternError(ConfigError):
    """A pattern is invalid. The text names it."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern of a list: for tables (database and table name) or for columns (column name).

    Its `repr` is part of what determines how a batch is split (rule 16: same chunks), so it has all names complete:
    Python's own `repr` of a regular expression ends after 200 characters."""

    is_positive: bool
    names: tuple[Name, ...]

    def __repr__(self) -> str:
        return f"_Pattern({', '.join([str(self.is_positive), *(repr(name.pattern) for name in self.names)])})"

    def match(self, *names: str) -> bool:
        return all(pattern.search(name) for pattern, name in zip(self.names, names, strict=False))


def patterns_of(texts: Iterable[str], what: str, spaces: str | None, parse: Parse) -> tuple[Pattern, ...]:
    """Parse a list of patterns. `what`: what a pattern is called in errors; `spaces`: the characters that are stripped,
    None: all white space. Raises PatternError naming the pattern."""
    stripped = [text.strip(spaces) for text in texts]
    return tuple(_pattern_of(text, what, parse) for text in stripped if text and not text.startswith("#"))


def _pattern_of(pattern: str, what: str, parse: Parse) -> Pattern:
    is_positive = not pattern.startswith("!")
    text = pattern if is_positive else pattern[1:]
    named = f"{what} {pattern!r}"
    if text.startswith("@"):
        raise PatternError(f"{named}: patterns cannot be read from another file")
    return Pattern(is_positive, parse(text, named))


def matches_every_name(name: Name) -> bool:
    """Return whether this is the pattern `*`."""
    return name.pattern == _EVERY_NAME


def name_pattern(text: str, at: int, what: str) -> tuple[Name | None, int]:
    """Parse the pattern of the name that begins at `at`. Return the pattern, None if the name is missing, and where it
    ends: at a point or at the end of the text, unless the text is invalid. Raises PatternError whose text begins
    with `what`."""
    found = _REGEX.match(text, at)
    if found is not None:
        return _regex(found[1], what), found.end()
    begin, parts = at, []
    while at < len(text) and text[at] != ".":
        plain, quoted, chars = _PLAIN.match(text, at), _QUOTED.match(text, at), _CLASS.match(text, at)
        if plain is not None:
            parts.append(re.escape(lower(plain[0])))
            at = plain.end()
        elif quoted is not None:
            name = quoted[1].replace('""', '"') if quoted[1] is not None else quoted[2].replace("``", "`")
            parts.append(re.escape(lower(name)))
            at = quoted.end()
        elif chars is not None:
            parts.append(_class(chars[2], what, is_negative=bool(chars[1])))
            at = chars.end()
        elif text[at] in _WILD:
            parts.append(_WILD[text[at]])
            at += 1
        elif text[at] == "\\" and at + 1 < len(text):
            _check_escapes(text[at : at + 2], what)
            parts.append(re.escape(lower(text[at + 1])))
            at += 2
        else:
            raise PatternError(unexpected(what, text[at]))
    if at == begin:
        return None, at
    return _compiled(f"\\A{''.join(parts)}\\Z", what, 0), at


def lower(name: str) -> str:
    """Convert to lower case letter by letter, as TiDB does. Python's `lower` of a text has a separate letter for the σ
    at the end of a word."""
    return name.lower() if name.isascii() else "".join(letter.lower()[:1] for letter in name)


def _class(chars: str, what: str, *, is_negative: bool) -> str:
    """Return a wildcard's class as a regular expression: `-` makes ranges, a backslash quotes the next character."""
    _check_escapes(chars, what)
    keeps_case = _MIXED_RANGE.search(chars) is not None
    shown = chars if keeps_case else lower(chars)
    found = "".join(re.escape(one.lstrip("\\") or "\\") if one != "-" else "-" for one in re.findall(r"\\.|.", shown))
    made = f"[{'^' * is_negative}{found}]"
    return f"(?i:{made})" if keeps_case else made


def _check_escapes(text: str, what: str) -> None:
    """Refuse a backslash before a letter or digit outside regular expressions, where TiDB reserves it."""
    found = _LETTER_ESCAPE.search(text.replace("\\\\", ""))
    if found is not None:
        raise PatternError(f"{what}: {found[0]} is not an escape, except in a regular expression: /…/")


def _regex(text: str, what: str) -> Name:
    r"""Compile a regular expression with Go's meaning: \w, \d, \s and \b are ASCII only. Names are converted to lower
    case before they are searched."""
    posix = _POSIX_CLASS.search(text)
    if posix is not None:
        raise PatternError(f"{what}: write {posix[0]} as a range, such as [a-z]")
    return _compiled(_NOT_ASCII.sub(lambda letters: lower(letters[0]), text), what, re.ASCII | re.IGNORECASE)


def _compiled(text: str, what: str, flags: int) -> Name:
    try:
        return re.compile(text, flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise PatternError(f"{what}: {error}") from None


def unexpected(what: str, char: str) -> str:
    """Return the text of the error for an unexpected character."""
    return f"{what}: unexpected {char!r}; put names with such characters in backquotes"
