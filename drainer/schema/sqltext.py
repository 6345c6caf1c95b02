"""The little SQL reading that schemas need: words of a statement, statements of a text, quoted names. Pure.

Only what stands outside quotes and comments counts. `/*! … */` and `/*T![feature] … */` are code, as TiDB runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<space>   \s+ | --(?=[\s]|$)[^\n]* | \#[^\n]* )
    | (?P<code>    /\*!\d* | /\*T!(?:\[[^\]]*\])? )
    | (?P<comment> /\*.*?(?:\*/|$) )
    | (?P<end>     \*/ )
    | (?P<name>    `(?:[^`]|``)*` )
    | (?P<text>    '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<word>    [\w$@]+ )
    | (?P<mark>    . )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is name (back-quotes removed), text, word or mark; [start, end) is its place in the statement."""

    kind: str
    value: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.value.upper() in words

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "word")


def tokens(sql: str) -> Iterator[Token]:
    """The tokens of `sql` without blanks and comments. Never fails: an open quote becomes a mark."""
    inside_code = 0
    position = 0
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        assert match is not None  # every character is at least a mark
        kind = match.lastgroup or "mark"
        start, position = position, match.end()
        if kind == "code":
            inside_code += 1
        elif kind == "end" and inside_code:
            inside_code -= 1
        elif kind == "end":
            yield Token("mark", "*", start, start + 1)
            yield Token("mark", "/", start + 1, position)
        elif kind == "name":
            yield Token("name", match.group()[1:-1].replace("``", "`"), start, position)
        elif kind not in ("space", "comment"):
            yield Token(kind, match.group(), start, position)


def statements(sql: str) -> tuple[str, ...]:
    """The text cut at every `;` outside quotes and comments; pieces without a token are left out."""
    pieces: list[str] = []
    start = 0
    filled = False
    last = 0
    for token in tokens(sql):
        if token.kind == "mark" and token.value == ";":
            if filled:
                pieces.append(sql[start : token.start].strip())
            start, filled = token.end, False
        else:
            filled = True
        last = token.end
    if filled and last > start:
        pieces.append(sql[start:].strip())
    return tuple(pieces)


def quoted(*names: str) -> str:
    """`a`.`b` with back-quotes doubled."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
