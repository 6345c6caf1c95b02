"""SQL lexer: tokens of a statement, statements of a text, quoted names. Pure.

Comments are recognised as by TiDB's parser:

    /*! … */ /*!50100 … */       code, whatever the version; five or six digits are a version, fewer are code
    /*T! … */ /*T![ttl] … */     code, if TiDB knows every feature in the brackets, else a comment
    /*M! … */ /*+ … */ /* … */   comments: MariaDB's code is a comment to TiDB, a hint changes no row
    -- …  # …                    comments to the end of the line; `--` only before a blank or the end

Code does not nest: the first */ outside quotes and comments ends it, however many were opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Features that TiDB knows in the brackets of /*T![…]. Code for features of a newer TiDB is treated as a comment here.
FEATURES: Final = frozenset(
    {"auto_rand", "auto_id_cache", "auto_rand_base", "clustered_index", "force_inc", "placement", "ttl"}
    | {"global_index", "pre_split", "affinity"}
)

# Blanks and digits are ASCII; everything beyond it belongs to a word.
_PIECE = re.compile(
    r"""
      (?P<space>   [ \t\n\v\f\r]+ )
    | (?P<comment> --(?=[ \t\n\v\f\r]|\Z)[^\n]* | \#[^\n]* )
    | (?P<open>    /\*! (?:[0-9]{5,6})?
                 | /\*T! (?:\[ (?P<features> [\w$\x80-\U0010ffff]+ (?:,[\w$\x80-\U0010ffff]+)* ) \])? )
    | (?P<block>   /\* )
    | (?P<end>     \*/ )
    | (?P<name>    `(?:[^`]|``)*` )
    | (?P<text>    '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<word>    [\w$@\x80-\U0010ffff]+ )
    | (?P<mark>    . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text; the pieces cover the whole text. `kind`: space, comment, open (`/*!`, `/*T!`), close (the
    `*/` of such code), name, text, word or mark."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is name (back-quotes removed), text, word or mark; [start, end) is its range in the statement."""

    kind: str
    value: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.value.upper() in words

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "word")


def pieces(sql: str) -> Iterator[Piece]:
    """Split `sql` into pieces as TiDB does. Never fails: an unterminated quote becomes a mark, an unterminated comment
    extends to the end."""
    in_code = False
    position = 0
    while position < len(sql):
        match = _PIECE.match(sql, position)
        assert match is not None  # every character is at least a mark
        kind, start, position = match.lastgroup or "mark", position, match.end()
        if match["open"] is not None:
            kind = "open" if FEATURES.issuperset((match["features"] or "ttl").split(",")) else "block"
            in_code = in_code or kind == "open"
        if kind == "block":
            closed = sql.find("*/", start + 2)
            kind, position = "comment", len(sql) if closed < 0 else closed + 2
        elif kind == "end" and in_code:
            kind, in_code = "close", False
        elif kind == "end":
            kind, position = "mark", start + 1
        yield Piece(kind, start, position)


def tokens(sql: str) -> Iterator[Token]:
    """The tokens of `sql` without blanks and comments, with those of the code in `/*! … */`. Never fails."""
    for piece in pieces(sql):
        if piece.kind == "name":
            value = sql[piece.start + 1 : piece.end - 1].replace("``", "`")
            yield Token("name", value, piece.start, piece.end)
        elif piece.kind in ("text", "word", "mark"):
            yield Token(piece.kind, sql[piece.start : piece.end], piece.start, piece.end)


def statements(sql: str) -> tuple[str, ...]:
    """Split the text at every `;` outside quotes and comments; pieces without a token are omitted.

    A `/*! … */` that spans a split is closed before it and opened again after it."""
    found: list[str] = []
    head = opened = ""
    start = last = 0
    filled = False
    for piece in pieces(sql):
        if piece.kind == "open":
            opened = sql[piece.start : piece.end]
        elif piece.kind == "close":
            opened = ""
        elif piece.kind == "mark" and sql[piece.start] == ";":
            if filled:
                found.append(head + sql[start : piece.start].strip() + (" */" if opened else ""))
            start, filled, head = piece.end, False, f"{opened} " if opened else ""
        elif piece.kind not in ("space", "comment"):
            filled = True
        last = piece.end
    if filled and last > start:
        found.append(head + sql[start:].strip())
    return tuple(found)


def without_comments(sql: str) -> str:
    """The text that TiDB executes, with the code of `/*! … */` unwrapped, because other servers recognise other
    comments as code. Each comment becomes a blank."""
    return "".join(
        " " if piece.kind in ("comment", "open", "close") else sql[piece.start : piece.end] for piece in pieces(sql)
    ).strip()


def quoted(*names: str) -> str:
    """`a`.`b` with back-quotes doubled."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
