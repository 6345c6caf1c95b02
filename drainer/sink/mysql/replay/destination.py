"""A server as reparo's destination. The position is written in one transaction with the rows. A DDL commits implicitly;
ddl_replay.py runs it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from zoneinfo import ZoneInfo

from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ServerError, Session
from drainer.sink.mysql.ddl.fingerprint import Name
from drainer.sink.mysql.replay.ddl_replay import DdlReplay
from drainer.sink.mysql.replay.positions import Positions
from drainer.sink.mysql.replay.row_writer import RowWriter
from drainer.sink.mysql.replay.session import ReconnectingSession
from drainer.sink.mysql.section import MySQLSection
from drainer.sink.replay import Replayed, ReplayFailed, ReplayPosition, ReplaySettings
from drainer.sink.replay_time import to_utc
from drainer.sink.settings import SyncerSettings

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
        self._positions = Positions(settings.name)
        self._session = ReconnectingSession(config, settings.wait_s)
        self._rows = RowWriter(safe=settings.safe)

    @property
    def name(self) -> str:
        return self._config.address

    def open(self) -> ReplayPosition | None:
        def prepared(session: Session) -> ReplayPosition | None:
            self._positions.create(session)
            return self._positions.read(session)

        return self._tried("opening", prepared)

    def apply(self, transactions: Sequence[Replayed], position: ReplayPosition) -> None:
        def applied(session: Session) -> None:
            if self._positions.read(session) == position:
                return  # it was committed, and the answer was lost
            with session.transaction():
                for one in transactions:
                    self._write(session, one)
                self._positions.store(session, position)
                crash_point("reparo.before_commit")
            crash_point("reparo.after_commit")

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

    def ddl(
        self, schema: str, statement: str, position: ReplayPosition, *, tables: Sequence[Name], repeated: bool
    ) -> None:
        one = DdlReplay(schema, statement, tables, position, repeated, self._settings.safe)

        def run(session: Session) -> None:
            self._rows.forget()
            one.run(session, self._positions)

        self._tried("running a DDL", run)

    def _tried(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Raises DestinationDown where the server stays away."""
        try:
            return self._session.run(what, work)
        except ServerError as error:
            raise DestinationRefused(f"{self.name}: {what}: {error}") from error

    def close(self) -> None:
        self._session.close()
