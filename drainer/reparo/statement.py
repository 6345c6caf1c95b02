"""Find the database of a DDL in a file, and the table by which it is filtered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drainer.ddl.lexer import Token, statements, tokens
from drainer.reparo.errors import ReparoError

_BEFORE_NAME: Final = ("IF", "NOT", "EXISTS", "IGNORE")
_KINDS: Final = ("TABLE", "VIEW", "SEQUENCE")


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL. `schema`: its database; `use`: the database in which it must run, "" if the record names none; `table`:
    its first table, "" for a statement about a database."""

    schema: str
    use: str
    table: str
    text: str


def parse(query: str) -> Statement:
    """Parse a record's ddl_query: one statement, perhaps after `use …;`. Raises ReparoError for more statements."""
    found = statements(query)
    use = ""
    if len(found) > 1:
        words = list(tokens(found[0]))
        if len(words) == 2 and words[0].is_word("USE") and words[1].is_name:
            use, found = words[1].value, found[1:]
    if len(found) != 1:
        raise ReparoError(f"{len(found)} statements where one is expected: {query!r:.300}")
    schema, table = _names(list(tokens(found[0])))
    return Statement(schema or use, use, table, found[0])


def _names(words: Sequence[Token]) -> tuple[str, str]:
    """Return (database if the statement names one, table)."""
    verb = words[0].value.upper() if words else ""
    at = 1
    if verb == "TRUNCATE":
        return _qualified(words, 2 if _is(words, 1, "TABLE") else 1)
    while at < len(words) and not _is(words, at, *_KINDS, "DATABASE", "SCHEMA", "INDEX"):
        at += 1
    if _is(words, at, "DATABASE", "SCHEMA"):
        return _name(words, _behind(words, at + 1)), ""
    if _is(words, at, "INDEX"):
        while at < len(words) and not _is(words, at, "ON"):
            at += 1
        return _qualified(words, at + 1)
    return _qualified(words, _behind(words, at + 1))


def _is(words: Sequence[Token], at: int, *values: str) -> bool:
    return at < len(words) and words[at].is_word(*values)


def _behind(words: Sequence[Token], at: int) -> int:
    while _is(words, at, *_BEFORE_NAME):
        at += 1
    return at


def _name(words: Sequence[Token], at: int) -> str:
    return words[at].value if at < len(words) and words[at].is_name else ""


def _qualified(words: Sequence[Token], at: int) -> tuple[str, str]:
    """(database or "", table) of `a.b` or `b`."""
    first = _name(words, at)
    if at + 2 < len(words) and words[at + 1].value == "." and words[at + 1].kind == "mark":
        return first, _name(words, at + 2)
    return "", first
