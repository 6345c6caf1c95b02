"""A server as reparo's destination. The position is a row of `tidb_binlog`.`reparo_position`, written with the rows.

A DDL ends a transaction of its own: its position is stored before it runs, with `in_ddl`, and again after it. One that
was interrupted is run again, and errors such as "table exists" (D-LD-14) are then taken for done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, Session, connect
from drainer.sink.mysql.ddl.runner import IGNORABLE
from drainer.sink.mysql.replay.statements import RowStatement, TableThere, statements
from drainer.sink.mysql.rows.row_warnings import stored_exactly
from drainer.sink.mysql.rows.statements import quote
from drainer.sink.mysql.rows.unique_keys import read
from drainer.sink.mysql.section import MySQLSection
from drainer.sink.replay import Replayed, ReplayFailed, ReplayPosition, ReplaySettings
from drainer.sink.replay_time import to_utc
from drainer.sink.retry import Patience
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
_IDLE_S: Final = 8 * 3600
_GENERATED: Final = re.compile(r"\b(?:VIRTUAL|STORED|PERSISTENT)\b", re.IGNORECASE)
_AT_ROW: Final = re.compile(r"column '?(?:[^']*\.)*`?([^'`]+)`?'? at row (\d+)$")

_log = get_logger(__name__)
_T = TypeVar("_T")


def make(to: MySQLSection, settings: ReplaySettings) -> ServerReplayer:
    """Not opened yet."""
    return ServerReplayer(to.server(SyncerSettings()), settings)


class ServerReplayer:
    """See replay.Replayer."""

    def __init__(self, config: ServerConfig, settings: ReplaySettings) -> None:
        self._config = config
        self._settings = settings
        self._zone = ZoneInfo(settings.zone)
        self._session: Session | None = None
        self._tables: dict[tuple[str, str], TableThere] = {}

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
        place = ""
        try:
            events = [self._in_utc(event) for event in one.events]
            for event in events:
                place = f"`{event.schema}`.`{event.table}`"
                self._look(session, event)
            for statement in statements(events, self._tables, session.flavour, safe=self._settings.safe):
                place = f"`{statement.schema}`.`{statement.table}`"
                self._run(session, statement, one.commit_ts)
        except (ServerError, MessageError, DecodeError) as error:
            raise ReplayFailed(f"{place}: {error}", commit_ts=one.commit_ts, table=place) from error

    def _run(self, session: Session, statement: RowStatement, commit_ts: int) -> None:
        found = session.execute(statement.sql)
        place = f"`{statement.schema}`.`{statement.table}`"
        if statement.rows not in (-1, found):
            raise ReplayFailed(
                f"{place}: {found} rows were found, and {statement.rows} should be: the destination is not what it was "
                f"upstream at that time; -safe-mode goes over it. The statement: {statement.sql[:200]!r}",
                commit_ts=commit_ts,
                table=place,
            )
        if session.warning_count:
            self._judge(session, statement, place, commit_ts)

    def _judge(self, session: Session, statement: RowStatement, place: str, commit_ts: int) -> None:
        """A value that the server stored otherwise than it is."""
        for level, code, text in session.warnings():
            at = _AT_ROW.search(text)
            if level == "Note" or at is None or at[1] not in statement.columns:
                continue
            row = int(at[2]) - 1
            known = 0 <= row < len(statement.tuples)
            if known and stored_exactly(code, statement.tuples[row][statement.columns.index(at[1])]):
                continue
            raise ReplayFailed(f"{place}: {code}: {text}", commit_ts=commit_ts, table=place)

    def _look(self, session: Session, event: FileEvent) -> None:
        """How the destination has an event's table; asked once until a DDL."""
        name = event.schema, event.table
        if name in self._tables:
            return
        found = read(session, *name)
        if found is None:
            raise MessageError("there is no such table in the destination")
        keys = sorted(found[0], key=lambda key: key.name.upper() != "PRIMARY")
        parts = [tuple(part.column.lower() for part in key.parts) for key in keys]
        extra = session.query(
            b"SELECT COLUMN_NAME, EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
            % (session.literal(event.schema), session.literal(event.table))
        )
        generated = frozenset(str(column).lower() for column, text in extra if _GENERATED.search(str(text)))
        self._tables[name] = TableThere(tuple(key for key in parts if "" not in key), generated)

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
            self._tables.clear()
            self._store(session, begun)
            crash_point("reparo.before_ddl")
            try:
                if schema:
                    session.execute(b"USE " + quote(schema))
                session.execute(statement.encode())
            except ServerError as error:
                if error.code not in IGNORABLE or not (state["repeated"] or self._settings.safe):
                    raise ReplayFailed(f"{error}; the statement: {statement}", commit_ts=position.commit_ts) from error
                _log.warning("a DDL's effect is there already", statement=statement, error=str(error))
            except ConnectionLost:
                state["repeated"] = True
                raise
            crash_point("reparo.after_ddl")
            self._store(session, position)

        self._tried("running a DDL", run)

    def _tried(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Again after a lost connection or a deadlock. Raises DestinationDown in the end."""
        patience = Patience(f"{self.name}: {what}", self._settings.wait_s)
        while True:
            try:
                if self._session is None:
                    self._session = connect(self._config, idle_s=_IDLE_S, read_timeout_s=None)
                done = work(self._session)
            except (ConnectionLost, Retry) as error:
                if isinstance(error, ConnectionLost):
                    self.close()
                patience.failed(error)
            except ServerError as error:
                raise DestinationRefused(f"{self.name}: {what}: {error}") from error
            else:
                patience.over()
                return done

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
