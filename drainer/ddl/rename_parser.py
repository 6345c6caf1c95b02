"""Parses RENAME TABLE of several tables (X-09), because only the text contains the target schemas. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.errors import BinlogError

from drainer.ddl.lexer import Token, tokens


class RenameUnreadable(BinlogError):
    """A text that should be RENAME TABLE is not."""

    def __init__(self, sql: str, offset: int, wanted: str) -> None:
        super().__init__(f"RENAME TABLE text, character {offset}: {wanted} expected in {sql[:200]!r}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class RenamePair:
    """One `old TO new` as written; a schema that the text does not name is None: the session's schema applies."""

    old_schema: str | None
    old: str
    new_schema: str | None
    new: str


def rename_pairs(sql: str) -> tuple[RenamePair, ...]:
    """The pairs of a RENAME TABLE statement in order. Raises RenameUnreadable with the offset."""
    return _Reader(sql).pairs()


class _Reader:
    """Walks the tokens once, left to right."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tokens = list(tokens(sql))
        self._at = 0

    def pairs(self) -> tuple[RenamePair, ...]:
        self._word("RENAME")
        self._word("TABLE", "TABLES")
        found = [self._pair()]
        while self._mark(","):
            found.append(self._pair())
        self._mark(";")
        if self._at < len(self._tokens):
            raise self._unreadable("the end")
        return tuple(found)

    def _pair(self) -> RenamePair:
        old_schema, old = self._table()
        self._word("TO", "AS")
        new_schema, new = self._table()
        return RenamePair(old_schema, old, new_schema, new)

    def _table(self) -> tuple[str | None, str]:
        first = self._name()
        return (first, self._name()) if self._mark(".") else (None, first)

    def _name(self) -> str:
        token = self._next()
        if token is None or not token.is_name:
            raise self._unreadable("a name")
        self._at += 1
        return token.value

    def _word(self, *words: str) -> None:
        token = self._next()
        if token is None or not token.is_word(*words):
            raise self._unreadable(words[0])
        self._at += 1

    def _mark(self, mark: str) -> bool:
        token = self._next()
        if token is None or token.kind != "mark" or token.value != mark:
            return False
        self._at += 1
        return True

    def _next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _unreadable(self, wanted: str) -> RenameUnreadable:
        token = self._next()
        return RenameUnreadable(self._sql, token.start if token else len(self._sql), wanted)
