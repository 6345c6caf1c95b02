"""Takes CHECK constraints out of a statement whose table has none upstream. Pure.

TiDB reads them and, unless tidb_enable_check_constraint is on, forgets them: rows that break one are written upstream,
columns that one names are dropped. A destination that kept it would stop there. MariaDB also refuses some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from drainer.sink.mysql.placed import Edit, Placed, edited, element, place


def without_checks(sql: str, notes: list[str]) -> str:
    """The text without them; '' when nothing else is left of an ALTER TABLE."""
    while True:
        placed = place(sql)
        at = _first(placed)
        if at is None:
            return sql
        notes.append("a CHECK constraint is left out: upstream does not have it")
        cut = _cut(placed, at)
        if cut is None:
            return ""
        sql = edited(sql, [cut])


def _first(placed: Sequence[Placed]) -> int | None:
    if not placed or not placed[0].is_word("CREATE", "ALTER") or not any(p.is_word("TABLE") for p in placed[1:4]):
        return None
    for at in range(1, len(placed) - 1):
        if placed[at].is_word("CHECK") and not placed[at].in_call and placed[at + 1].is_mark("("):
            return at
    return None


def _cut(placed: Sequence[Placed], at: int) -> Edit | None:
    """What to cut out for the CHECK at `at`; None when it is all there is."""
    end = next(i for i in range(at + 2, len(placed)) if placed[i].depth == placed[at].depth and placed[i].is_mark(")"))
    while end + 1 < len(placed) and placed[end + 1].is_word("NOT", "ENFORCED"):
        if placed[end + 1].is_word("NOT") and not (end + 2 < len(placed) and placed[end + 2].is_word("ENFORCED")):
            break  # the NOT NULL of a column
        end += 1
    start = at
    if placed[at - 1].is_word("CONSTRAINT"):
        start = at - 1
    elif placed[at - 1].token.is_name and placed[at - 2].is_word("CONSTRAINT"):
        start = at - 2
    span = element(placed, at)
    added = start > 0 and placed[start - 1].is_word("ADD")
    if not added and start != span.start:  # of a column, which stays
        return Edit(placed[start].token.start, placed[end].token.end, "")
    start -= added
    if end + 1 < len(placed) and placed[end + 1].is_mark(","):
        return Edit(placed[start].token.start, placed[end + 1].token.end, "")
    if placed[start - 1].is_mark(","):
        return Edit(placed[start - 1].token.start, placed[end].token.end, "")
    return None
