"""A statement as TiDB runs it, in words that MySQL and MariaDB take the same way: without any comment. Pure.

Which comments are code differs: `/*M! … */` is code to MariaDB alone, `/*!999999 … */` and `/*T! … */` to TiDB alone.
So what upstream does not run is taken out, and what it runs stands in the open. Clauses that only say how TiDB stores
a table are left out; what that leaves behind is not always a statement: `ADD COLUMN a INT, /*T! SHARD_ROW_ID_BITS = 0
*/` ends with a comma.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from drainer.ddl.lexer import Piece, Token, pieces, tokens

# The first word of each clause that TiDB writes as /*T! … */ and that concerns its storage alone.
_OWN: Final = frozenset(
    {"AUTO_RANDOM", "AUTO_RANDOM_BASE", "AUTO_ID_CACHE", "SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS", "CLUSTERED"}
    | {"NONCLUSTERED", "GLOBAL", "LOCAL", "TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL", "PLACEMENT", "FORCE", "AFFINITY"}
    | {"ATTRIBUTES", "STATS_OPTIONS", "REMOVE"}
)
# None of these clauses has a word of these: who writes one there means something else.
_OTHERS: Final = frozenset(
    {"ADD", "ALTER", "CHANGE", "CHARACTER", "CHARSET", "CHECK", "COLLATE", "COLUMN", "COMMENT", "CONSTRAINT", "CONVERT"}
    | {"CREATE", "DROP", "ENGINE", "EXCHANGE", "FOREIGN", "INDEX", "KEY", "MODIFY", "NOT", "NULL", "ORDER", "PARTITION"}
    | {"PARTITIONING", "PRIMARY", "RENAME", "TRUNCATE", "UNIQUE"}
)


def without_comments(sql: str) -> str:
    """What TiDB runs of the text, without its own clauses and without a comma that separated nothing but them."""
    cut = list(pieces(sql))
    if all(piece.kind not in ("comment", "open") for piece in cut):
        return sql
    kept = ""
    gap = removed = False  # since the last text that was kept: something that was not, one of TiDB's clauses
    for piece, own in _marked(sql, cut):
        text = sql[piece.start : piece.end]
        if own:
            removed = True
        elif piece.kind in ("comment", "open", "close"):
            gap = True
        elif piece.kind == "space" and (gap or removed):
            continue
        elif removed and text in (";", ",") and kept.rstrip().endswith(","):
            kept, gap, removed = kept.rstrip()[:-1] + text, False, False
        elif removed and text == "," and _names_table(kept):
            removed, gap = False, True
        else:
            if gap or removed:
                kept = kept.rstrip()
                kept += " " if kept and text not in ",;)" else ""
            kept, gap, removed = kept + text, False, False
    if not (gap or removed):
        return kept
    kept = kept.rstrip()
    return kept.rstrip(",") if removed else kept


def _marked(sql: str, cut: Sequence[Piece]) -> Iterator[tuple[Piece, bool]]:
    """Every piece, and whether it belongs to one of TiDB's clauses in /*T! … */."""
    at = 0
    while at < len(cut):
        end = at + 1
        if cut[at].kind == "open" and sql.startswith("/*T!", cut[at].start):
            end += sum(1 for _ in itertools.takewhile(lambda piece: piece.kind != "close", cut[at + 1 :])) + 1
        inner = sql[cut[at].end : cut[min(end, len(cut)) - 1].start]
        own = end > at + 1 and _are_own(list(tokens(inner)))
        for piece in cut[at : end if own else at + 1]:
            yield piece, own
        at = end if own else at + 1


def _are_own(words: list[Token]) -> bool:
    """Whether code is a list of TiDB's clauses and nothing else."""
    if not words or any(word.is_word(*_OTHERS) for word in words):
        return False
    depth = 0
    heads = [words[0]]
    for word, after in itertools.pairwise(words):
        depth += (word.value == "(") - (word.value == ")")
        if word.value == "," and not depth:
            heads.append(after)
        if word.is_word("REMOVE") and not after.is_word("TTL"):
            return False
    return all(head.is_word(*_OWN) for head in heads)


def _names_table(text: str) -> bool:
    """Whether nothing but ALTER TABLE and a name stands before."""
    return re.fullmatch(r"\s*ALTER\s+TABLE\s+(?:[\w$]+|`(?:[^`]|``)*`|\s*\.\s*)+\s*", text, re.IGNORECASE) is not None
