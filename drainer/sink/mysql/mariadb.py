"""What MariaDB says differently, or cannot say but rows do not need. Pure: edits of a statement's text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from drainer.sink.mysql.placed import Edit, Placed, element


def edits(placed: Sequence[Placed]) -> list[Edit]:
    """Edits that do not touch whole list elements."""
    return [*_visibility(placed), *_unenforced(placed), *_generated(placed), *_drops(placed)]


def _visibility(placed: Sequence[Placed]) -> list[Edit]:
    """An invisible index is called an ignored one."""
    words = {"INVISIBLE": "IGNORED", "VISIBLE": "NOT IGNORED"}
    return [
        Edit(here.token.start, here.token.end, words[here.token.value.upper()])
        for here in placed
        if here.is_word(*words) and not here.in_call
    ]


def _unenforced(placed: Sequence[Placed]) -> list[Edit]:
    """CHECK (…) [NOT] ENFORCED and EXCHANGE PARTITION … WITH | WITHOUT VALIDATION."""
    found: list[Edit] = []
    for before, here in itertools.pairwise(placed):
        if here.is_word("ENFORCED"):
            start = before.token.start if before.is_word("NOT") else here.token.start
            found.append(Edit(start, here.token.end, ""))
        if here.is_word("VALIDATION") and before.is_word("WITH", "WITHOUT"):
            found.append(Edit(before.token.start, here.token.end, ""))
    return found


def _generated(placed: Sequence[Placed]) -> list[Edit]:
    """A generated column takes no NOT NULL."""
    return [
        Edit(placed[at + 1].token.start, placed[at + 2].token.end, "")
        for at in range(len(placed) - 2)
        if placed[at].is_word("STORED", "VIRTUAL") and placed[at + 1].is_word("NOT") and placed[at + 2].is_word("NULL")
    ]


def _drops(placed: Sequence[Placed]) -> list[Edit]:
    """An index that could not be made here need not be there to be dropped. A CHECK is a CONSTRAINT."""
    found: list[Edit] = []
    for at in range(len(placed) - 2):
        index = placed[at + 1]
        if placed[at].is_word("DROP") and index.is_word("INDEX", "KEY") and not placed[at + 2].is_word("IF"):
            found.append(Edit(index.token.end, index.token.end, " IF EXISTS"))
        if placed[at].is_word("DROP") and index.is_word("CHECK", "CONSTRAINT") and placed[at + 2].token.is_name:
            found.append(Edit(index.token.start, index.token.end, "CONSTRAINT IF EXISTS"))
    return found


def without_expression_indexes(sql: str, placed: Sequence[Placed], notes: list[str]) -> str | None:
    """The text without the indexes on expressions that MariaDB cannot have; '' when nothing else is left, None when
    there are none. Rows do not depend on them."""
    cut: list[Edit] = []
    for at in range(len(placed) - 1):
        nested = placed[at].is_mark("(") and placed[at + 1].is_mark("(")
        if not nested:
            continue
        span = element(placed, at)
        if not _defines_index(placed, span):
            continue
        notes.append("an index on an expression is left out: MariaDB has none")
        if placed[0].is_word("CREATE") and placed[span.start].is_word("CREATE"):
            return ""
        cut.append(_without(placed, span))
    if not cut:
        return None
    if all(edit.start == 0 for edit in cut):
        return ""
    text = sql
    for start, end in sorted({(edit.start, edit.end) for edit in cut}, reverse=True):
        text = text[:start] + text[end:]
    return text


def _defines_index(placed: Sequence[Placed], span: range) -> bool:
    """`[ALTER TABLE t] [ADD] [UNIQUE] INDEX | KEY …`, `CREATE [UNIQUE] INDEX …`."""
    words = [placed[at].token.value.upper() for at in span if placed[at].token.kind == "word"][:6]
    return bool({"INDEX", "KEY"} & set(words)) and not {"PRIMARY", "FOREIGN", "DROP", "RENAME"} & set(words)


def _without(placed: Sequence[Placed], span: range) -> Edit:
    """The element with one comma beside it. The first element of an ALTER TABLE includes its head, which stays."""
    start = span.start
    if start == 0:  # ALTER TABLE name ADD …
        start = next(at for at in span if placed[at].is_word("ADD"))
    after = span.stop
    if after < len(placed) and placed[after].is_mark(","):
        return Edit(placed[start].token.start, placed[after].token.end, "")
    if start > 0 and placed[start - 1].is_mark(","):
        return Edit(placed[start - 1].token.start, placed[span.stop - 1].token.end, "")
    return Edit(0, 0, "")
