"""Stores the position of reparo in `tidb_binlog`.`reparo_position`, and the table definitions from before a DDL in
`tidb_binlog`.`reparo_ddl`."""

from __future__ import annotations

from dataclasses import astuple
from typing import Final

from drainer.sink.mysql.connection import Session
from drainer.sink.replay import ReplayPosition

_TABLE: Final = b"`tidb_binlog`.`reparo_position`"
_DDL: Final = b"`tidb_binlog`.`reparo_ddl`"
_COLUMNS: Final = b"file_number, begin_at, end_at, crc, commit_ts, in_ddl"
_CHARSET: Final = b" DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
_CREATE: Final = (
    b"CREATE DATABASE IF NOT EXISTS `tidb_binlog`",
    b"CREATE TABLE IF NOT EXISTS " + _TABLE + b" (name VARCHAR(100) NOT NULL PRIMARY KEY,"
    b" file_number BIGINT UNSIGNED NOT NULL, begin_at BIGINT UNSIGNED NOT NULL, end_at BIGINT UNSIGNED NOT NULL,"
    b" crc BIGINT UNSIGNED NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, in_ddl TINYINT NOT NULL)" + _CHARSET,
    b"CREATE TABLE IF NOT EXISTS " + _DDL + b" (name VARCHAR(100) NOT NULL PRIMARY KEY,"
    b" definitions LONGTEXT NOT NULL)" + _CHARSET,
)


class Positions:
    """Read and store the position of the replay `name`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self, session: Session) -> None:
        for statement in _CREATE:
            session.execute(statement)

    def read(self, session: Session) -> ReplayPosition | None:
        rows = session.query(b"SELECT " + _COLUMNS + b" FROM " + _TABLE + self._where(session))
        if not rows:
            return None
        number, begin, end, crc, commit_ts, in_ddl = (int(value or 0) for value in rows[0])
        return ReplayPosition(number, begin, end, crc, commit_ts, bool(in_ddl))

    def store(self, session: Session, position: ReplayPosition) -> None:
        values = b",".join(b"%d" % value for value in astuple(position))
        name = session.literal(self.name)
        session.execute(
            b"REPLACE INTO " + _TABLE + b" (name, " + _COLUMNS + b") VALUES (" + name + b"," + values + b")"
        )

    def definitions(self, session: Session) -> str | None:
        """Return what `begin_ddl` stored; None after `end_ddl`, and for a DDL that an earlier version began."""
        rows = session.query(b"SELECT definitions FROM " + _DDL + self._where(session))
        return str(rows[0][0]) if rows else None

    def begin_ddl(self, session: Session, begun: ReplayPosition, definitions: str) -> None:
        """Store the position of a DDL that is about to run, and the definitions of its tables, together."""
        values = session.literal(self.name) + b"," + session.literal(definitions)
        with session.transaction():
            self.store(session, begun)
            session.execute(b"REPLACE INTO " + _DDL + b" (name, definitions) VALUES (" + values + b")")

    def end_ddl(self, session: Session, position: ReplayPosition | None) -> None:
        """Store the position after a DDL, or the one before it, None: there was none; and remove the definitions."""
        with session.transaction():
            session.execute(b"DELETE FROM " + _DDL + self._where(session))
            if position is None:
                session.execute(b"DELETE FROM " + _TABLE + self._where(session))
            else:
                self.store(session, position)

    def _where(self, session: Session) -> bytes:
        return b" WHERE name=" + session.literal(self.name)
