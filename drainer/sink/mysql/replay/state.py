"""Stores the position of a replay, and the DDL after it that has not ended, in a table of `tidb_binlog`."""

from __future__ import annotations

from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.rows.statements import qualified
from drainer.sink.replay import ReplaySettings

_SCHEMA = "tidb_binlog"


class State:
    """The row of one replay. Its position changes only if it is the one that this process stored or read last."""

    def __init__(self, address: str, settings: ReplaySettings) -> None:
        self._address = address
        self._settings = settings
        self._table = qualified(_SCHEMA, settings.table)
        self._stored = ""

    def open(self, session: ServerSession) -> str:
        """Create table and row, and return the position, "" at the beginning."""
        session.execute(b"CREATE DATABASE IF NOT EXISTS `tidb_binlog`")
        session.execute(
            b"CREATE TABLE IF NOT EXISTS " + self._table + b" (name VARCHAR(100) NOT NULL PRIMARY KEY,"
            b" position LONGTEXT NOT NULL, ddl LONGTEXT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
        )
        name = session.literal(self._settings.name)
        session.execute(b"INSERT IGNORE INTO " + self._table + b" (name, position) VALUES (" + name + b",'')")
        self._stored = self._read(session)[0]
        return self._stored

    def is_at(self, session: ServerSession, position: str) -> bool:
        """Return whether this position is stored. Raises DestinationRefused if another process has stored one."""
        found, _ = self._read(session)
        if found not in (position, self._stored):
            raise self._shared()
        return found == position

    def move(self, session: ServerSession, position: str, ddl: str | None) -> None:
        """Store a position and a DDL after it, in the session's transaction. Raises as `is_at`."""
        found = session.execute(
            b"UPDATE %b SET position=%b, ddl=%b WHERE %b AND position=%b"
            % (
                self._table,
                session.literal(position),
                _or_null(session, ddl),
                self._where(session),
                session.literal(self._stored),
            )
        )
        if found != 1:
            raise self._shared()

    def moved(self, position: str) -> None:
        """The transaction of `move` was committed."""
        self._stored = position

    def ddl(self, session: ServerSession) -> str | None:
        return self._read(session)[1]

    def store_ddl(self, session: ServerSession, ddl: str | None) -> None:
        """Replace the stored DDL; None removes it."""
        value = _or_null(session, ddl)
        session.execute(b"UPDATE %b SET ddl=%b WHERE %b" % (self._table, value, self._where(session)))

    def remedy(self, session: ServerSession, commit_ts: int) -> str:
        """Say how an operator leaves out the stored DDL."""
        if self._settings.remedy:
            return self._settings.remedy.format(commit_ts=commit_ts)
        return (b"UPDATE %b SET ddl=NULL WHERE %b" % (self._table, self._where(session))).decode()

    def _read(self, session: ServerSession) -> tuple[str, str | None]:
        ((position, ddl),) = session.query(
            b"SELECT position, ddl FROM " + self._table + b" WHERE " + self._where(session)
        )
        return str(position), None if ddl is None else str(ddl)

    def _where(self, session: ServerSession) -> bytes:
        return b"name=" + session.literal(self._settings.name)

    def _shared(self) -> DestinationRefused:
        return DestinationRefused(
            f"{self._address}: another {self._settings.program} named {self._settings.name} writes here, too"
        )


def _or_null(session: ServerSession, text: str | None) -> bytes:
    return b"NULL" if text is None else session.literal(text)
