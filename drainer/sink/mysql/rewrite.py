"""Makes a DDL's text mean in the destination what it meant upstream. Pure: text and facts in, text out.

What a text leaves out is filled with the server's defaults, and those differ: TiDB's utf8mb4 means utf8mb4_bin.
So character set and collation are written out, from the job's own TableInfo or DBInfo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drainer.sink.mysql import foreign, mariadb
from drainer.sink.mysql.checks import without_checks
from drainer.sink.mysql.comments import without_comments
from drainer.sink.mysql.placed import Edit, Placed, edited, element, place

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
    """What the job made, from its TableInfo or DBInfo: character set and collation, '' where there is none, and the
    defaults of its TIMESTAMP columns (column in lower case, UTC text), which the text gives in the writer's zone.
    `checks`: whether upstream keeps CHECK constraints of this table; `foreign_keys`: those it keeps (foreign.py), None
    where the text is not to be judged by them."""

    charset: str = ""
    collate: str = ""
    timestamps: tuple[tuple[str, str], ...] = ()
    checks: bool = True
    foreign_keys: tuple[tuple[tuple[str, ...], str], ...] | None = None
    table_id: int = 0


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


def rewrite(sql: str, defaults: Defaults, dialect: Dialect, *, operators: bool = False) -> Rewritten:
    """The text as the destination must be told it: comments as upstream takes them, collations and UTC defaults spelled
    out, collations that the destination lacks replaced, in MariaDB's dialect. '' when nothing is left that it could do.

    `operators`: the text is an operator's own for this destination, whose comments stay."""
    notes: list[str] = []
    text = sql if operators or dialect.flavour == "tidb" else without_comments(sql)
    if dialect.flavour != "tidb" and not defaults.checks:
        text = without_checks(text, notes)
        if not text:
            return Rewritten("", tuple(notes))
    if dialect.flavour == "mariadb":
        cut = mariadb.without_expression_indexes(text, place(text), notes)
        if cut == "":
            return Rewritten("", tuple(notes))
        text = text if cut is None else cut
    placed = place(text)
    edits = [
        *_explicit_collations(placed, defaults, dialect, notes),
        *_known_collations(placed, dialect, notes),
        *_own_defaults(placed, defaults, dialect, notes),
        *_utc_defaults(placed, dict(defaults.timestamps)),
    ]
    if dialect.flavour != "tidb":
        edits += [*_engines(placed, notes), *_linear(placed)]
        if defaults.foreign_keys is not None:
            on_mariadb = dialect.flavour == "mariadb"
            edits += foreign.edits(placed, defaults.foreign_keys, defaults.table_id, if_exists=on_mariadb)
    if dialect.flavour == "mariadb":
        edits += mariadb.edits(placed)
    return Rewritten(edited(text, edits), tuple(notes))


def _engines(placed: Sequence[Placed], notes: list[str]) -> list[Edit]:
    """TiDB reads ENGINE and forgets it. A real MyISAM cannot roll back, a BLACKHOLE keeps nothing."""
    edits: list[Edit] = []
    for at, here in enumerate(placed):
        value = _value_after(placed, at + 1) if here.is_word("ENGINE") and not here.depth else None
        if value is not None and placed[value].token.value.strip("'\"").lower() != "innodb":
            token = placed[value].token
            notes.append(f"engine {token.value} is InnoDB there")
            edits.append(Edit(token.start, token.end, "InnoDB"))
    return edits


def _linear(placed: Sequence[Placed]) -> list[Edit]:
    """TiDB reads LINEAR and forgets it. Here it would put rows into other partitions."""
    return [
        Edit(here.token.start, after.token.start, "")
        for before, here, after in zip(placed, placed[1:], placed[2:], strict=False)
        if before.is_word("BY") and here.is_word("LINEAR") and after.is_word("HASH", "KEY")
    ]


def _value_after(placed: Sequence[Placed], at: int) -> int | None:
    """Index of the name after an optional `=`, None when there is none."""
    if at < len(placed) and placed[at].is_mark("="):
        at += 1
    if at < len(placed) and (placed[at].token.is_name or placed[at].token.kind == "text"):
        return at
    return None


def _charset_at(placed: Sequence[Placed], at: int) -> int | None:
    """Index of the character set's name when CHARSET or CHARACTER SET begins at `at`."""
    token = placed[at].token
    if token.is_word("CHARSET"):
        return _value_after(placed, at + 1)
    if token.is_word("CHARACTER") and at + 1 < len(placed) and placed[at + 1].is_word("SET"):
        return _value_after(placed, at + 2)
    return None


def _explicit_collations(
    placed: Sequence[Placed], defaults: Defaults, dialect: Dialect, notes: list[str]
) -> list[Edit]:
    """A character set without a collation gets the one it has upstream."""
    edits: list[Edit] = []
    for at in range(len(placed)):
        value = _charset_at(placed, at)
        if value is None or placed[at].in_call:
            continue
        depth = placed[at].depth
        around = (placed[other] for other in element(placed, at))
        if any(other.depth == depth and other.is_word("COLLATE") for other in around):
            continue
        charset = placed[value].token.value.strip("'\"").lower()
        same = defaults.charset.lower() == charset
        collate = defaults.collate if same and defaults.collate else TIDB_DEFAULTS.get(charset, "")
        if collate:
            end = placed[value].token.end
            edits.append(Edit(end, end, f" COLLATE {_nearest(collate, dialect, notes)}"))
    return edits


def _known_collations(placed: Sequence[Placed], dialect: Dialect, notes: list[str]) -> list[Edit]:
    edits: list[Edit] = []
    for at, here in enumerate(placed):
        value = _value_after(placed, at + 1) if here.is_word("COLLATE") else None
        if value is None:
            continue
        token = placed[value].token
        written = token.value.strip("'\"")
        nearest = _nearest(written, dialect, notes)
        if nearest != written:
            edits.append(Edit(token.start, token.end, nearest))
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


def _own_defaults(placed: Sequence[Placed], defaults: Defaults, dialect: Dialect, notes: list[str]) -> list[Edit]:
    """CREATE TABLE and CREATE DATABASE say what they leave to the server's defaults."""
    if not defaults.charset or not placed or not placed[0].is_word("CREATE"):
        return []
    kind = next((p.token.value.upper() for p in placed[1:5] if p.is_word("TABLE", "DATABASE", "SCHEMA")), "")
    if not kind:
        return []
    place = _end_of_definitions(placed) if kind == "TABLE" else _end_of_statement(placed)
    outside = [at for at, here in enumerate(placed) if here.depth == 0]
    stated = any(placed[at].is_word("COLLATE") or _charset_at(placed, at) is not None for at in outside)
    if place is None or stated:
        return []
    collate = defaults.collate or TIDB_DEFAULTS.get(defaults.charset.lower(), "")
    text = f" DEFAULT CHARACTER SET {defaults.charset}"
    if collate:
        text += f" COLLATE {_nearest(collate, dialect, notes)}"
    return [Edit(place, place, text)]


def _end_of_definitions(placed: Sequence[Placed]) -> int | None:
    """Where the table's options begin: after the definitions' parenthesis. None for CREATE TABLE … LIKE."""
    for at, here in enumerate(placed):
        if here.is_word("LIKE") and here.depth <= 1:
            before = placed[at - 1]
            if here.depth == 0 or before.is_mark("("):
                return None
        if here.depth == 0 and here.is_mark(")"):
            return here.token.end
    return None


def _end_of_statement(placed: Sequence[Placed]) -> int:
    last = placed[-1]
    return last.token.start if last.is_mark(";") else last.token.end


def _utc_defaults(placed: Sequence[Placed], timestamps: dict[str, str]) -> list[Edit]:
    """DEFAULT 'text' of TIMESTAMP columns, as the TableInfo has it: in UTC, which is the session's zone here."""
    edits: list[Edit] = []
    for at, here in enumerate(placed):
        if not here.is_word("DEFAULT") or here.in_call:
            continue
        value = at + 1
        if value < len(placed) and placed[value].token.value.startswith("_"):  # an introducer such as _UTF8MB4
            value += 1
        column = _column_of(placed, at)
        if value < len(placed) and placed[value].token.kind == "text" and column in timestamps:
            token = placed[value].token
            edits.append(Edit(token.start, token.end, f"'{timestamps[column]}'"))
    return edits


def _column_of(placed: Sequence[Placed], at: int) -> str:
    """The TIMESTAMP column whose definition, or ALTER COLUMN … SET, the DEFAULT at `at` belongs to."""
    if at >= 2 and placed[at - 1].is_word("SET"):
        return placed[at - 2].token.value.lower()
    for other in element(placed, at):
        if other and placed[other].is_word("TIMESTAMP") and placed[other].depth == placed[at].depth:
            return placed[other - 1].token.value.lower()
    return ""
