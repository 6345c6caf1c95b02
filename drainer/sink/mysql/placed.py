"""A statement's tokens with their place among its parentheses, and edits of its text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drainer.ddl.lexer import Token, tokens


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace [start, end) of a text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A token, how many parentheses it stands in, and whether the innermost belongs to an expression, not a list."""

    token: Token
    depth: int
    in_call: bool

    def is_mark(self, mark: str) -> bool:
        return self.token.kind == "mark" and self.token.value == mark

    def is_word(self, *words: str) -> bool:
        return self.token.is_word(*words)


def place(sql: str) -> list[Placed]:
    """Every token of `sql`. A parenthesis itself stands outside of what it encloses."""
    placed: list[Placed] = []
    calls: list[bool] = []
    last: Token | None = None
    for token in tokens(sql):
        if token.kind == "mark" and token.value == ")" and calls:
            calls.pop()
        placed.append(Placed(token, len(calls), bool(calls and calls[-1])))
        if token.kind == "mark" and token.value == "(":
            calls.append(last is not None and last.is_word("CAST", "CONVERT", "AS", "CHECK", "DEFAULT"))
        last = token
    return placed


def element(placed: Sequence[Placed], at: int) -> range:
    """The list element `at` belongs to: up to the commas around it in its own parentheses."""
    depth = placed[at].depth

    def boundary(index: int) -> bool:
        other = placed[index]
        return other.depth < depth or (other.depth == depth and (other.is_mark(",") or other.is_mark(";")))

    start = at
    while start > 0 and not boundary(start - 1):
        start -= 1
    end = at
    while end + 1 < len(placed) and not boundary(end + 1):
        end += 1
    return range(start, end + 1)


def edited(sql: str, edits: Iterable[Edit]) -> str:
    """The text with all edits, which must not overlap."""
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        sql = sql[: edit.start] + edit.text + sql[edit.end :]
    return sql
