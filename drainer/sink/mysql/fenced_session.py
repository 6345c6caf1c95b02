"""The driver's connection: it holds the changefeed's lock, and what it does is fenced by the epoch.

A Driver is closed, open, or lost. When the connection is lost it takes the lock again and looks whether the epoch is
still its own; if not, another drainer has taken over and everything raises Fenced.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final, TypeVar

from drainer.sink.base import Identity
from drainer.sink.errors import DestinationError, Fenced
from drainer.sink.mysql import lock, position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerSession, connect
from drainer.sink.mysql.position import Changefeed, ServerPositionStore
from drainer.sink.position import Stored
from drainer.sink.retry import RetryDeadline

# The driver may wait long between two batches; the lock must not be lost by idleness.
_IDLE_S: Final = 7 * 24 * 3600
_MARKS: Final = 1000

T = TypeVar("T")
Body = Callable[[ServerSession], None]
Done = Callable[[Stored], bool]


@dataclass(eq=False)
class Driver:
    """See the module. `changefeed` and `epoch` are set by `start`. `beside`: those of the driver that holds the lock,
    for a task of its first load, which takes no lock."""

    config: ServerConfig
    identity: Identity
    stop: threading.Event
    beside: InitVar[tuple[Changefeed, int] | None] = None
    changefeed: Changefeed = field(init=False)
    epoch: int = 0

    def __post_init__(self, beside: tuple[Changefeed, int] | None) -> None:
        self._session: ServerSession | None = None
        self.joined = beside is not None
        if beside is not None:
            self.changefeed, self.epoch = beside

    def store(self, session: ServerSession) -> ServerPositionStore:
        """The position, in the session's transaction."""
        return position.store(session, self.changefeed)

    def mark(self, session: ServerSession) -> None:
        """Mark the session's transaction, which writes rows, for loopback-control."""
        # Not by the number of the process: those of executors in containers have the same ones.
        writer = position.DRIVER + (1 + secrets.randbelow(_MARKS) if self.joined else 0)
        position.mark(session, self.config.channel_id, writer)

    def deadline(self, what: str, *, wait_s: float | None = None) -> RetryDeadline:
        """For work on this connection; `wait_s` where the configured time is not meant."""
        return RetryDeadline(what, self.config.retry_for_s if wait_s is None else wait_s, self.stop)

    def start(self, take: Callable[[ServerSession], T]) -> T:
        """Connect, take the lock, make the tables, and `take` the epoch, which must set ours."""

        def taken() -> T:
            session = self._locked()
            position.create_tables(session, self.changefeed)
            return take(session)

        return self._repeated(f"connecting to {self.config.address}", taken)

    def session(self) -> ServerSession:
        """The open session; after a loss a new one that holds the lock and is still of our epoch.

        Raises ConnectionLost, Fenced, LockHeld."""
        if self._session is None:
            session = self._locked()
            stored = self.store(session).read()
            if stored is None or stored.epoch != self.epoch:
                self.lose()
                raise Fenced(f"{self.changefeed.label}: another drainer took over while the connection was lost")
        assert self._session is not None
        return self._session

    def patiently(self, what: str, look: Callable[[ServerSession], T]) -> T:
        """Run something that may be repeated, on a new connection when the old one is lost."""
        return self._repeated(f"{self.changefeed.label}: {what}", lambda: look(self.session()))

    def _repeated(self, what: str, work: Callable[[], T]) -> T:
        return self.deadline(what).repeat(work, (ConnectionLost, Retry), lambda _: self.lose())

    def transact(self, what: str, body: Body, done: Done = lambda _: False, *, wait_s: float | None = None) -> None:
        """Run `body` in one transaction until it is committed.

        `done` decides by the stored position whether a transaction whose answer was lost had been committed; without it
        that may be repeated. After deadlocks and lost connections the transaction is repeated for as long as the
        configuration allows."""
        label = f"{self.changefeed.label}: {what}"
        uncertain = False

        def once() -> None:
            nonlocal uncertain
            session = self.session()
            stored = self.store(session).read() if uncertain else None
            if stored is None or not done(stored):
                uncertain = False
                with session.transaction(label, before="sink.before_commit", after="sink.after_commit"):
                    body(session)

        def failed(error: DestinationError) -> None:
            nonlocal uncertain
            if isinstance(error, ConnectionLost):
                uncertain = True
                self.lose()

        self.deadline(label, wait_s=wait_s).repeat(once, (ConnectionLost, Retry), failed)

    def lose(self) -> None:
        """Drop the connection."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(ConnectionLost):
                lock.release(self._session, self.identity)
            self.lose()

    def _locked(self) -> ServerSession:
        self.lose()
        timeout_s = self.config.read_timeout_s if self.joined else None
        session = connect(self.config, idle_s=_IDLE_S, read_timeout_s=timeout_s)
        self._session = session
        self.changefeed = Changefeed.of(self.config, self.identity, session)
        try:
            if not self.joined:
                lock.acquire(session, self.config, self.identity, self.changefeed, self.stop)
        except BaseException:
            self.lose()
            raise
        return session
