"""SQL lexer: tokens of a statement, statements of a text, quoted names; and the names in a RENAME TABLE. Pure.

Comments are recognised as by TiDB's parser:

    /*! … */ /*!50100 … */       code, whatever the version; five or six digits are a version, fewer are code
    /*T! … */ /*T![ttl] … */     code, if TiDB knows every feature in the brackets, else a comment
    /*M! … */ /*+ … */ /* … */   comments: MariaDB's code is a comment to TiDB, a hint changes no row
    -- …  # …                    comments to the end of the line; `--` only before a blank or the end

Code does not nest: the first */ outside quotes and comments ends it, however many were opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from binlog.errors import BinlogError

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


class Unexpected(BinlogError):
    """A statement goes on otherwise than its words before demand."""

    def __init__(self, sql: str, offset: int, wanted: str) -> None:
        super().__init__(f"character {offset}: {wanted} expected in {sql[:200]!r}")
        self.offset = offset


class Words:
    """The tokens of a statement, taken one after another. `schema`: of tables that are named without one."""

    def __init__(self, sql: str, schema: str = "", left: Iterable[Token] | None = None) -> None:
        """`left`: the tokens, if they are only a part of the statement."""
        self._sql = sql
        self._schema = schema
        self.left = list(tokens(sql) if left is None else left)

    def take(self, *values: str) -> bool:
        """Take the next token if it is one of these words."""
        if self.left and self.left[0].is_word(*values):
            self.left.pop(0)
            return True
        return False

    def skip(self, *values: str) -> None:
        while self.take(*values):
            pass

    def mark(self, value: str) -> bool:
        """Take the next token if it is this mark."""
        if self.left and (self.left[0].kind, self.left[0].value) == ("mark", value):
            self.left.pop(0)
            return True
        return False

    def expect(self, *values: str) -> None:
        """Raises Unexpected."""
        if not self.take(*values):
            raise self.unexpected(" or ".join(values))

    def name(self) -> str:
        """Raises Unexpected."""
        if not self.left or not self.left[0].is_name:
            raise self.unexpected("a name")
        return self.left.pop(0).value

    def table(self) -> tuple[str, str]:
        """Return schema and name of a table. Raises Unexpected."""
        first = self.name()
        return (first, self.name()) if self.mark(".") else (self._schema, first)

    def parts(self) -> list[Words]:
        """Split at commas outside brackets."""
        found: list[list[Token]] = [[]]
        depth = 0
        for word in self.left:
            mark = word.value if word.kind == "mark" else ""
            depth += (mark == "(") - (mark == ")")
            if mark == "," and not depth:
                found.append([])
            else:
                found[-1].append(word)
        return [Words(self._sql, self._schema, part) for part in found]

    def unexpected(self, wanted: str) -> Unexpected:
        return Unexpected(self._sql, self.left[0].start if self.left else len(self._sql), wanted)


# RENAME TABLE of several tables is parsed, because only the text contains the target schemas.


Name = tuple[str, str]  # schema, table


def rename_pairs(sql: str, schema: str = "") -> tuple[tuple[Name, Name], ...]:
    """The pairs (old, new) of a RENAME TABLE statement in order. `schema`: that of the session, of tables that are
    named without one. Raises Unexpected with the offset."""
    words = Words(sql, schema)
    words.expect("RENAME")
    words.expect("TABLE", "TABLES")
    found: list[tuple[Name, Name]] = []
    while not found or words.mark(","):
        old = words.table()
        words.expect("TO", "AS")
        found.append((old, words.table()))
    words.mark(";")
    if words.left:
        raise words.unexpected("the end")
    return tuple(found)
