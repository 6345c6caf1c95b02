"""Find the DDLs that must not run twice, because the second run undoes the first one without an error. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

from drainer.ddl.lexer import Token, tokens
from drainer.ddl.rename_parser import RenameUnreadable, rename_pairs
from drainer.ddl.table_diff import changed_names

Pairs = list[tuple[str, str]]


def undoes_itself(query: str, schema: str) -> bool:
    """Return whether a second run undoes the first: EXCHANGE PARTITION, and statements that exchange the names of
    tables or columns. `schema`: the database of tables without one."""
    words = list(tokens(query))
    if not words:
        return False
    if words[0].is_word("RENAME"):
        return _exchanges(_renamed_tables(query, schema))
    following = list(pairwise(words))
    if any(word.is_word("EXCHANGE") and behind.is_word("PARTITION") for word, behind in following):
        return True
    renamed = [
        (words[at + 2].value, words[at + 4].value)
        for at, (word, behind) in enumerate(following)
        if word.is_word("RENAME") and behind.is_word("COLUMN") and at + 4 < len(words)
    ]
    return _exchanges(changed_names(query) + renamed)


def named_tables(query: str, schema: str, table: str) -> list[tuple[str, str]]:
    """Return the tables, by schema and name, whose definitions or data show whether the statement has run. `schema` and
    `table`: those that the message names, "" if it names none."""
    found = [(schema, table)]
    words = list(tokens(query))
    if words and words[0].is_word("RENAME"):
        with contextlib.suppress(RenameUnreadable):
            for pair in rename_pairs(query):
                found += [(pair.old_schema or schema, pair.old), (pair.new_schema or schema, pair.new)]
    for at, (word, behind) in enumerate(pairwise(words)):
        if word.is_word("WITH") and behind.is_word("TABLE"):
            found.append(_table_at(words[at + 2 : at + 5], schema))
    return [(of, name) for of, name in dict.fromkeys(found) if of and name]


def _table_at(words: Sequence[Token], schema: str) -> tuple[str, str]:
    if len(words) == 3 and words[1].value == ".":
        return words[0].value, words[2].value
    return schema, words[0].value if words else ""


def _renamed_tables(query: str, schema: str) -> Pairs:
    try:
        return [
            (f"{pair.old_schema or schema}.{pair.old}", f"{pair.new_schema or schema}.{pair.new}")
            for pair in rename_pairs(query)
        ]
    except RenameUnreadable:
        return []


def _exchanges(pairs: Pairs) -> bool:
    """Return whether every old name is also a new name."""
    moved = [(old.lower(), new.lower()) for old, new in pairs if old.lower() != new.lower()]
    return bool(moved) and {old for old, _ in moved} <= {new for _, new in moved}
