"""Write rows and DDLs into a MySQL, MariaDB or TiDB server. The position is a row of `tidb_binlog`.`kafka_consumer`.

Rows and the position are written in one transaction. A DDL commits by itself: it is stored together with the rows
before it, run, and then removed; `open` continues a DDL that was interrupted (server_ddl.py).

A row becomes a DELETE of the old row and a REPLACE of the new one, because rows of one transaction that exchange values
of a unique key are written one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.kafka_consumer.core import ConsumeError, Part, Resume
from drainer.kafka_consumer.destination import resume_of, resume_text
from drainer.kafka_consumer.server_ddl import DdlRun, StoredDdl
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, DdlEvent, Image, RowEvent, Value
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, ServerError, Session
from drainer.sink.mysql.replay.row_writer import RowWriter
from drainer.sink.mysql.replay.session import ReconnectingSession
from drainer.sink.mysql.replay.statements import TableThere
from drainer.sink.replay import ReplayFailed
from drainer.sink.replay_time import to_utc

_TABLE: Final = b"`tidb_binlog`.`kafka_consumer`"
_CREATE: Final = (
    b"CREATE DATABASE IF NOT EXISTS `tidb_binlog`",
    b"CREATE TABLE IF NOT EXISTS " + _TABLE + b" (name VARCHAR(100) NOT NULL PRIMARY KEY, position LONGTEXT NOT NULL,"
    b" ddl LONGTEXT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
)
_WAIT_S: Final = 60.0
_TYPES: Final = {"decimal": Tp.NEWDECIMAL, "float": Tp.FLOAT, "json": Tp.JSON, "timestamp": Tp.TIMESTAMP}

_T = TypeVar("_T")


class ServerDestination:
    """See destination.Destination. `name`: the consumer's name, under which the server keeps its position; `zone`: the
    time zone of TIMESTAMPs in messages. Closed until `open`."""

    def __init__(self, config: ServerConfig, name: str, zone: str) -> None:
        self._config = config
        self._name = name
        self._zone = None if zone == "UTC" else ZoneInfo(zone)
        self._session = ReconnectingSession(config, _WAIT_S)
        self._rows = RowWriter(safe=True)
        self._stored = ""

    def open(self) -> Resume:
        def prepared(session: Session) -> str:
            for statement in _CREATE:
                session.execute(statement)
            values = b",".join(map(session.literal, (self._name, resume_text(Resume()))))
            session.execute(b"INSERT IGNORE INTO " + _TABLE + b" (name, position) VALUES (" + values + b")")
            return self._state(session)[0]

        self._stored = self._tried("opening", prepared)
        self._run_ddl(repeated=True)
        return resume_of(self._stored)

    def apply(self, part: Part) -> None:
        text = resume_text(part.resume)

        def applied(session: Session) -> None:
            stored, _ = self._state(session)
            if stored == text:
                return  # it was committed, and the answer was lost
            if stored != self._stored:
                raise ConsumeError(f"{self._config.address}: another consumer named {self._name} writes here, too")
            with session.transaction():
                self._rows.write(session, part.resume.applied_ts, [self._event(session, row) for row in part.rows])
                self._store(session, text, part.ddl)
                crash_point("consumer.before_commit")
            crash_point("consumer.after_commit")

        self._tried("applying rows", applied)
        self._stored = text
        if part.ddl is not None:
            self._run_ddl(repeated=False)

    def close(self) -> None:
        self._session.close()

    def _state(self, session: Session) -> tuple[str, str | None]:
        """Return the stored position, and the DDL that was begun or None."""
        where = b" WHERE name=" + session.literal(self._name)
        ((position, ddl),) = session.query(b"SELECT position, ddl FROM " + _TABLE + where)
        return str(position), None if ddl is None else str(ddl)

    def _store(self, session: Session, text: str, ddl: DdlEvent | None) -> None:
        begun = b"NULL" if ddl is None else session.literal(StoredDdl.of(ddl).text())
        where = [self._name, self._stored]
        name, stored = map(session.literal, where)
        found = session.execute(
            b"UPDATE %b SET position=%b, ddl=%b WHERE name=%b AND position=%b"
            % (_TABLE, session.literal(text), begun, name, stored)
        )
        if found != 1:
            raise ConsumeError(f"{self._config.address}: another consumer named {self._name} writes here, too")

    def _run_ddl(self, *, repeated: bool) -> None:
        """Run the stored DDL, if there is one. `repeated`: it may have run before."""
        state = {"repeated": repeated}

        def run(session: Session) -> None:
            self._rows.forget()
            try:
                ddl = DdlRun(session, self._name, lambda text: self._keep(session, text), self._taken_away(session))
                ddl.run(lambda: self._state(session)[1], repeated=state["repeated"])
            except ConnectionLost:
                state["repeated"] = True
                raise

        self._tried("running a DDL", run)

    def _keep(self, session: Session, text: str | None) -> None:
        """Store a DDL in place of the stored one; None removes it."""
        value = b"NULL" if text is None else session.literal(text)
        session.execute(b"UPDATE %b SET ddl=%b WHERE name=%b" % (_TABLE, value, session.literal(self._name)))

    def _taken_away(self, session: Session) -> str:
        """Return the statement that removes the stored DDL."""
        return f"UPDATE {_TABLE.decode()} SET ddl=NULL WHERE name={session.literal(self._name).decode()}"

    def _event(self, session: Session, row: RowEvent) -> FileEvent:
        try:
            return _file_event(row, self._rows.table(session, row.schema, row.table), self._zone)
        except MessageError as error:
            place = f"`{row.schema}`.`{row.table}`"
            raise ReplayFailed(f"{place}: {error}", commit_ts=row.commit_ts, table=place) from error

    def _tried(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Run `work` in the session. Raises ConsumeError, and DestinationDown if the server stays unreachable."""
        try:
            return self._session.run(what, work)
        except DestinationDown:
            raise
        except ReplayFailed as error:
            raise ConsumeError(f"rows up to commit_ts {error.commit_ts}: {error}") from error
        except (ServerError, DestinationError) as error:
            raise ConsumeError(f"{self._config.address}: {what}: {error}") from error


def _file_event(row: RowEvent, there: TableThere, zone: ZoneInfo | None) -> FileEvent:
    """Convert a row event. Types are those of the destination's columns, because not every protocol has upstream's."""
    new = row.new or {}
    old: Image = {**new, **(row.old or row.key or {})}
    if row.change is Change.DELETE or row.new is None:
        columns = [_column(name, one.value, None, there, zone) for name, one in old.items()]
        return FileEvent(row.schema, row.table, Change.DELETE, tuple(columns))
    if row.old is None:  # an insert, or an update whose message has only the new row
        columns = [_column(name, one.value, None, there, zone) for name, one in new.items()]
        return FileEvent(row.schema, row.table, Change.INSERT, tuple(columns))
    columns = [_column(name, old[name].value, one.value, there, zone) for name, one in new.items()]
    return FileEvent(row.schema, row.table, Change.UPDATE, tuple(columns))


def _column(name: str, value: Value, changed: Value, there: TableThere, zone: ZoneInfo | None) -> FileColumn:
    kind = there.types.get(name.lower())
    if kind is None:
        raise MessageError(f"the destination has no column `{name}`")
    code = _TYPES.get(kind, 0)
    if code == Tp.TIMESTAMP and zone is not None:
        value, changed = _utc(value, zone), _utc(changed, zone)
    elif code == Tp.FLOAT:
        value, changed = _single(value), _single(changed)
    return FileColumn(name, code, kind, value, changed)


def _single(value: Value) -> Value:
    """The shortest digits of a single are those of another double, which for the largest one is out of range."""
    return float(np.float32(value)) if isinstance(value, float) else value


def _utc(value: Value, zone: ZoneInfo) -> Value:
    return to_utc(value.encode(), zone) if isinstance(value, str) else value
