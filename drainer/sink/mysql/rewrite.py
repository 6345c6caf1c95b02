"""Makes a DDL's text mean in the destination what it meant upstream. Pure: text and facts in, text out.

What a text leaves out is filled with the server's defaults, and those differ: TiDB's utf8mb4 means utf8mb4_bin.
So character set and collation are written out, from the job's own TableInfo or DBInfo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drainer.schema.sqltext import Token, tokens

# TiDB's default collation of each character set (what a text means that names only the set).
TIDB_DEFAULTS: Final = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
# Where a destination lacks a collation: the nearest first.
SUBSTITUTES: Final = {
    "utf8mb4_0900_ai_ci": ("utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_520_nopad_ci", "utf8mb4_unicode_520_ci"),
    "utf8mb4_0900_bin": ("utf8mb4_nopad_bin", "utf8mb4_bin"),
    "gbk_bin": ("gbk_bin",),
    "utf8mb4_bin": ("utf8mb4_bin",),
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Character set and collation of what the job made, from its TableInfo or DBInfo; '' where there is none."""

    charset: str = ""
    collate: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the destination knows. `collations`: lower case."""

    flavour: str
    collations: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The text to run, and what had to be replaced by something near."""

    sql: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class _Placed:
    """A token, how many parentheses it stands in, and whether the innermost belongs to a call such as CAST( … )."""

    token: Token
    depth: int
    in_call: bool


def rewrite(sql: str, defaults: Defaults, dialect: Dialect) -> Rewritten:
    """Spell out collations, replace those the destination lacks, and MariaDB's words for index visibility."""
    placed = _place(sql)
    notes: list[str] = []
    edits = [
        *_explicit_collations(placed, defaults, dialect, notes),
        *_known_collations(placed, dialect, notes),
        *_visibility(placed, dialect),
        *_own_defaults(placed, sql, defaults, dialect, notes),
    ]
    text = sql
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return Rewritten(text, tuple(notes))


def _place(sql: str) -> list[_Placed]:
    placed: list[_Placed] = []
    calls: list[bool] = []
    last: Token | None = None
    for token in tokens(sql):
        if token.kind == "mark" and token.value == ")" and calls:
            calls.pop()
        placed.append(_Placed(token, len(calls), bool(calls and calls[-1])))
        if token.kind == "mark" and token.value == "(":
            calls.append(last is not None and last.is_word("CAST", "CONVERT", "AS", "CHECK", "DEFAULT"))
        last = token
    return placed


def _is_mark(placed: _Placed, mark: str) -> bool:
    return placed.token.kind == "mark" and placed.token.value == mark


def _value_after(placed: Sequence[_Placed], at: int) -> int | None:
    """Index of the name after an optional `=`, None when there is none."""
    if at < len(placed) and _is_mark(placed[at], "="):
        at += 1
    if at < len(placed) and (placed[at].token.is_name or placed[at].token.kind == "text"):
        return at
    return None


def _charset_at(placed: Sequence[_Placed], at: int) -> int | None:
    """Index of the character set's name when CHARSET or CHARACTER SET begins at `at`."""
    token = placed[at].token
    if token.is_word("CHARSET"):
        return _value_after(placed, at + 1)
    if token.is_word("CHARACTER") and at + 1 < len(placed) and placed[at + 1].token.is_word("SET"):
        return _value_after(placed, at + 2)
    return None


def _element(placed: Sequence[_Placed], at: int) -> range:
    """The list element `at` belongs to: up to the commas around it in its own parentheses."""
    depth = placed[at].depth

    def boundary(index: int) -> bool:
        other = placed[index]
        return other.depth < depth or (other.depth == depth and _is_mark(other, ","))

    start = at
    while start > 0 and not boundary(start - 1):
        start -= 1
    end = at
    while end + 1 < len(placed) and not boundary(end + 1):
        end += 1
    return range(start, end + 1)


def _explicit_collations(
    placed: Sequence[_Placed], defaults: Defaults, dialect: Dialect, notes: list[str]
) -> list[_Edit]:
    """A character set without a collation gets the one it has upstream."""
    edits: list[_Edit] = []
    for at in range(len(placed)):
        value = _charset_at(placed, at)
        if value is None or placed[at].in_call:
            continue
        depth = placed[at].depth
        element = (placed[other] for other in _element(placed, at))
        if any(other.depth == depth and other.token.is_word("COLLATE") for other in element):
            continue
        charset = placed[value].token.value.strip("'\"").lower()
        same = defaults.charset.lower() == charset
        collate = defaults.collate if same and defaults.collate else TIDB_DEFAULTS.get(charset, "")
        if collate:
            end = placed[value].token.end
            edits.append(_Edit(end, end, f" COLLATE {_nearest(collate, dialect, notes)}"))
    return edits


def _known_collations(placed: Sequence[_Placed], dialect: Dialect, notes: list[str]) -> list[_Edit]:
    edits: list[_Edit] = []
    for at, here in enumerate(placed):
        value = _value_after(placed, at + 1) if here.token.is_word("COLLATE") else None
        if value is None:
            continue
        token = placed[value].token
        written = token.value.strip("'\"")
        nearest = _nearest(written, dialect, notes)
        if nearest != written:
            edits.append(_Edit(token.start, token.end, nearest))
    return edits


def _nearest(collate: str, dialect: Dialect, notes: list[str]) -> str:
    lowered = collate.lower()
    if not dialect.collations or lowered in dialect.collations:
        return collate
    for candidate in SUBSTITUTES.get(lowered, ()):
        if candidate in dialect.collations:
            notes.append(f"collation {collate} is not known there, {candidate} is used")
            return candidate
    return collate  # the server's own error will name it


def _visibility(placed: Sequence[_Placed], dialect: Dialect) -> list[_Edit]:
    """MariaDB calls an invisible index an ignored one."""
    if dialect.flavour != "mariadb":
        return []
    words = {"INVISIBLE": "IGNORED", "VISIBLE": "NOT IGNORED"}
    return [
        _Edit(here.token.start, here.token.end, words[here.token.value.upper()])
        for here in placed
        if here.token.is_word(*words) and not here.in_call
    ]


def _own_defaults(
    placed: Sequence[_Placed], sql: str, defaults: Defaults, dialect: Dialect, notes: list[str]
) -> list[_Edit]:
    """CREATE TABLE and CREATE DATABASE say what they leave to the server's defaults."""
    if not defaults.charset or not placed or not placed[0].token.is_word("CREATE"):
        return []
    kind = next((p.token.value.upper() for p in placed[1:5] if p.token.is_word("TABLE", "DATABASE", "SCHEMA")), "")
    if not kind:
        return []
    place = _end_of_definitions(placed) if kind == "TABLE" else _end_of_statement(placed)
    outside = [at for at, here in enumerate(placed) if here.depth == 0]
    stated = any(placed[at].token.is_word("COLLATE") or _charset_at(placed, at) is not None for at in outside)
    if place is None or stated:
        return []
    collate = defaults.collate or TIDB_DEFAULTS.get(defaults.charset.lower(), "")
    text = f" DEFAULT CHARACTER SET {defaults.charset}"
    if collate:
        text += f" COLLATE {_nearest(collate, dialect, notes)}"
    return [_Edit(place, place, text)]


def _end_of_definitions(placed: Sequence[_Placed]) -> int | None:
    """Where the table's options begin: after the definitions' parenthesis. None for CREATE TABLE … LIKE."""
    for at, here in enumerate(placed):
        if here.token.is_word("LIKE") and here.depth <= 1:
            before = placed[at - 1]
            if here.depth == 0 or _is_mark(before, "("):
                return None
        if here.depth == 0 and _is_mark(here, ")"):
            return here.token.end
    return None


def _end_of_statement(placed: Sequence[_Placed]) -> int:
    last = placed[-1]
    return last.token.start if _is_mark(last, ";") else last.token.end
