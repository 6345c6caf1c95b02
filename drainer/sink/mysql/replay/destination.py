"""A server as reparo's destination. The position is a row of `tidb_binlog`.`reparo_position`, written with the rows.

A DDL commits implicitly. So its position is stored before it runs, with `in_ddl`, and again after it. A DDL that was
interrupted is run again, and errors such as "table exists" (D-LD-14) are then treated as success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, ServerError, Session
from drainer.sink.mysql.ddl.runner import execute_text
from drainer.sink.mysql.replay.row_writer import RowWriter
from drainer.sink.mysql.replay.session import ReconnectingSession
from drainer.sink.mysql.section import MySQLSection
from drainer.sink.replay import Replayed, ReplayFailed, ReplayPosition, ReplaySettings
from drainer.sink.replay_time import to_utc
from drainer.sink.settings import SyncerSettings

_SCHEMA: Final = "tidb_binlog"
_TABLE: Final = b"`tidb_binlog`.`reparo_position`"
_COLUMNS: Final = b"file_number, begin_at, end_at, crc, commit_ts, in_ddl"
_CREATE: Final = (
    b"CREATE DATABASE IF NOT EXISTS `tidb_binlog`",
    b"CREATE TABLE IF NOT EXISTS " + _TABLE + b" (name VARCHAR(100) NOT NULL PRIMARY KEY,"
    b" file_number BIGINT UNSIGNED NOT NULL, begin_at BIGINT UNSIGNED NOT NULL, end_at BIGINT UNSIGNED NOT NULL,"
    b" crc BIGINT UNSIGNED NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, in_ddl TINYINT NOT NULL)"
    b" DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
)

_T = TypeVar("_T")


def make(to: MySQLSection, settings: ReplaySettings) -> ServerReplayer:
    """Return the destination, not opened yet."""
    return ServerReplayer(to.server(SyncerSettings()), settings)


class ServerReplayer:
    """See replay.Replayer."""

    def __init__(self, config: ServerConfig, settings: ReplaySettings) -> None:
        self._config = config
        self._settings = settings
        self._zone = ZoneInfo(settings.zone)
        self._session = ReconnectingSession(config, settings.wait_s)
        self._rows = RowWriter(safe=settings.safe)

    @property
    def name(self) -> str:
        return self._config.address

    def open(self) -> ReplayPosition | None:
        def prepared(session: Session) -> ReplayPosition | None:
            for statement in _CREATE:
                session.execute(statement)
            return self._position(session)

        return self._tried("opening", prepared)

    def _position(self, session: Session) -> ReplayPosition | None:
        rows = session.query(b"SELECT " + _COLUMNS + b" FROM " + _TABLE + b" WHERE name=" + self._named(session))
        if not rows:
            return None
        number, begin, end, crc, commit_ts, in_ddl = (int(value or 0) for value in rows[0])
        return ReplayPosition(number, begin, end, crc, commit_ts, bool(in_ddl))

    def _named(self, session: Session) -> bytes:
        return session.literal(self._settings.name)

    def _store(self, session: Session, position: ReplayPosition) -> None:
        values = b",".join(b"%d" % value for value in astuple(position))
        session.execute(
            b"REPLACE INTO "
            + _TABLE
            + b" (name, "
            + _COLUMNS
            + b") VALUES ("
            + self._named(session)
            + b","
            + values
            + b")"
        )

    def apply(self, transactions: Sequence[Replayed], position: ReplayPosition) -> None:
        def applied(session: Session) -> None:
            if self._position(session) == position:
                return  # it was committed, and the answer was lost
            session.begin()
            try:
                for one in transactions:
                    self._write(session, one)
                self._store(session, position)
                crash_point("reparo.before_commit")
                session.commit()
                crash_point("reparo.after_commit")
            except BaseException:
                session.rollback()
                raise

        self._tried("applying rows", applied)

    def _write(self, session: Session, one: Replayed) -> None:
        try:
            events = [self._in_utc(event) for event in one.events]
        except (MessageError, DecodeError) as error:
            raise ReplayFailed(str(error), commit_ts=one.commit_ts) from error
        self._rows.write(session, one.commit_ts, events)

    def _in_utc(self, event: FileEvent) -> FileEvent:
        """The session's zone is UTC, the file's may be another one."""
        if self._settings.zone == "UTC" or all(column.type_code != Tp.TIMESTAMP for column in event.columns):
            return event

        def moved(column: FileColumn) -> FileColumn:
            def value(of: PlainValue) -> PlainValue:
                return to_utc(of, self._zone) if isinstance(of, bytes) else of

            if column.type_code != Tp.TIMESTAMP:
                return column
            return FileColumn(
                column.name, column.type_code, column.type_name, value(column.value), value(column.changed)
            )

        return FileEvent(event.schema, event.table, event.change, tuple(map(moved, event.columns)))

    def ddl(self, schema: str, statement: str, position: ReplayPosition, *, repeated: bool) -> None:
        begun = ReplayPosition(
            position.file_number, position.begin, position.begin, position.crc, position.commit_ts, in_ddl=True
        )
        state = {"repeated": repeated}

        def run(session: Session) -> None:
            if self._position(session) == position:
                return
            self._rows.forget()
            self._store(session, begun)
            crash_point("reparo.before_ddl")
            may_have_run = state["repeated"] or self._settings.safe
            try:
                execute_text(session, schema, statement, commit_ts=position.commit_ts, may_have_run=may_have_run)
            except ServerError as error:
                raise ReplayFailed(f"{error}; the statement: {statement}", commit_ts=position.commit_ts) from error
            except ConnectionLost:
                state["repeated"] = True
                raise
            crash_point("reparo.after_ddl")
            self._store(session, position)

        self._tried("running a DDL", run)

    def _tried(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Raises DestinationDown where the server stays away."""
        try:
            return self._session.run(what, work)
        except ServerError as error:
            raise DestinationRefused(f"{self.name}: {what}: {error}") from error

    def close(self) -> None:
        self._session.close()
