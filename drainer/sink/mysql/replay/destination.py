"""A server as a replayer's destination. The position is written in one transaction with the rows. A DDL commits
implicitly: it is stored with the position, and ddl.py runs it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from binlog.runtime.crashpoint import crash_point

from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ServerError, Session
from drainer.sink.mysql.replay.ddl import DdlRun, StoredDdl
from drainer.sink.mysql.replay.row_writer import RowWriter
from drainer.sink.mysql.replay.session import ReconnectingSession
from drainer.sink.mysql.replay.state import State
from drainer.sink.mysql.section import MySQLSection
from drainer.sink.replay import Replayed, ReplayedDdl, ReplaySettings, never
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
        self._state = State(config.address, settings)
        self._session = ReconnectingSession(config, settings.wait_s)
        self._rows = RowWriter(safe=settings.safe, zone=settings.zone)

    @property
    def name(self) -> str:
        return self._config.address

    def open(self, is_left_out: Callable[[ReplayedDdl], bool] = never) -> str:
        position = self._tried("opening", self._state.open)
        self._run_ddl(is_left_out)
        return position

    def apply(self, transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None = None) -> None:
        def applied(session: Session) -> None:
            if self._state.is_at(session, position):
                return  # it was committed, and the answer was lost
            with session.transaction():
                for one in transactions:
                    self._rows.write(session, one.commit_ts, one.events)
                self._state.move(session, position, None if ddl is None else StoredDdl(ddl).text())
                crash_point("replay.before_commit")
            crash_point("replay.after_commit")

        self._tried("applying rows", applied)
        self._state.moved(position)
        if ddl is not None:
            self._run_ddl(never)

    def _run_ddl(self, is_left_out: Callable[[ReplayedDdl], bool]) -> None:
        def run(session: Session) -> None:
            self._rows.forget()
            DdlRun(session, self._state, self._settings).run(is_left_out)

        self._tried("running a DDL", run)

    def _tried(self, what: str, work: Callable[[Session], _T]) -> _T:
        """Raises DestinationDown where the server stays away."""
        try:
            return self._session.run(what, work)
        except ServerError as error:
            raise DestinationRefused(f"{self.name}: {what}: {error}") from error

    def close(self) -> None:
        self._session.close()
