"""Matches the columns of a table before and after a DDL. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.tidb.column import ColumnInfo

from drainer.ddl.lexer import tokens


def paired(before: Sequence[ColumnInfo], after: Sequence[ColumnInfo], query: str) -> dict[int, ColumnInfo]:
    """Column id after the DDL → the column before it. Columns keep their id except when a MODIFY or CHANGE rewrote
    them; those are matched by name, or by CHANGE in `query`."""
    old = {column.id: column for column in before}
    pairs = {column.id: old.pop(column.id) for column in after if column.id in old}
    by_name = {column.name.lower(): column for column in old.values()}
    renamed = {new.lower(): was.lower() for was, new in changed_names(query)}
    for column in after:
        name = column.name.lower()
        was = by_name.get(renamed.get(name, name))
        if column.id not in pairs and was is not None and was.id in old:
            pairs[column.id] = old.pop(was.id)
    return pairs


def changed_names(query: str) -> list[tuple[str, str]]:
    """(old name, new name) of each CHANGE [COLUMN] [IF EXISTS] old new … in the text."""
    words = list(tokens(query))
    found = []
    for at, word in enumerate(words):
        if word.is_word("CHANGE"):
            rest = words[at + 1 : at + 6]
            while rest and rest[0].is_word("COLUMN", "IF", "EXISTS"):
                rest = rest[1:]
            if len(rest) >= 2:
                found.append((rest[0].value, rest[1].value))
    return found
