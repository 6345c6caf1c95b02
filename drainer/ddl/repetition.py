"""Find the DDLs that must not run twice, because the second run undoes the first one without an error. Pure."""

from __future__ import annotations

import contextlib
from itertools import pairwise

from drainer.ddl.lexer import Unexpected, Words, rename_pairs, tokens
from drainer.ddl.table_diff import changed_names

Pairs = list[tuple[str, str]]


def undoes_itself(query: str, schema: str) -> bool:
    """Return whether a second run undoes the first: EXCHANGE PARTITION, and statements that exchange the names of
    tables or columns. `schema`: the database of tables without one."""
    words = list(tokens(query))
    if not words:
        return False
    if words[0].is_word("RENAME"):
        with contextlib.suppress(Unexpected):
            return _exchanges([(".".join(old), ".".join(new)) for old, new in rename_pairs(query, schema)])
        return False
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
    with contextlib.suppress(Unexpected):
        for pair in rename_pairs(query, schema) if words and words[0].is_word("RENAME") else ():
            found += pair
        for at, (word, behind) in enumerate(pairwise(words)):
            if word.is_word("WITH") and behind.is_word("TABLE"):
                found.append(Words(query, schema, words[at + 2 :]).table())
    return [(of, name) for of, name in dict.fromkeys(found) if of and name]


def _exchanges(pairs: Pairs) -> bool:
    """Return whether every old name is also a new name."""
    moved = [(old.lower(), new.lower()) for old, new in pairs if old.lower() != new.lower()]
    return bool(moved) and {old for old, _ in moved} <= {new for _, new in moved}
