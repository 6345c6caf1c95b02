"""The driver's connection: it holds the changefeed's lock, and what it does is fenced by the epoch.

A Driver is closed, open, or lost. When the connection is lost it takes the lock again and looks whether the epoch is
still its own; if not, another drainer has taken over and everything raises Fenced.

The lock is the server's named lock, which ensures one driver per changefeed, and one replayer of a name that runs a DDL
(rule 15). The server releases it when the connection ends, and a connection ends only after its statement. So a driver
that gets the lock knows that no DDL of its predecessor is running. Row transactions do not rely on the lock; they are
fenced by the epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Final, TypeVar

from binlog.runtime.log import get_logger

from drainer.sink.base import Identity
from drainer.sink.errors import DestinationError, Fenced, LockHeld
from drainer.sink.mysql import position
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.mysql.position import Changefeed, ServerPositionStore
from drainer.sink.position import Stored
from drainer.sink.retry import RetryDeadline

_log = get_logger(__name__)

STATEMENT_WAIT_S: Final = 5
_NAME_CHARACTERS_MAX: Final = 64
_NO_SUCH_TABLE: Final = frozenset({1049, 1146})
_AGAIN_S: Final = 10
_UNKNOWN_THREAD: Final = 1094
_NO_SUCH_FUNCTION: Final = 1305


def lock_name(*parts: object) -> str:
    """At most 64 characters, the servers' limit."""
    name = "/".join(("tidb_binlog", *map(str, parts)))
    if len(name) <= _NAME_CHARACTERS_MAX:
        return name
    return "tidb_binlog/" + hashlib.blake2b(name.encode(), digest_size=24).hexdigest()


@contextlib.contextmanager
def statement_lock(session: ServerSession, name: str, busy: str) -> Iterator[None]:
    """Hold a lock of the session's connection while a DDL runs: a killed process's statement has ended before the next
    process checks whether it has run. Raises Retry with the text `busy` if another connection keeps it."""
    quoted = session.literal(name)
    if not try_lock(session, name):
        raise Retry(busy)
    try:
        yield
    finally:
        with contextlib.suppress(DestinationError):  # a lost connection has released the lock
            session.query(b"SELECT RELEASE_LOCK(%s)" % quoted)


def try_lock(session: ServerSession, name: str) -> bool:
    """Wait STATEMENT_WAIT_S for a lock that the session's connection then holds. Return whether it does."""
    return _get(session, session.literal(name), STATEMENT_WAIT_S)


def acquire(
    session: ServerSession, config: ServerConfig, identity: Identity, changefeed: Changefeed, stop: threading.Event
) -> None:
    """Take the changefeed's lock, or end the connection that holds it where `takeover` allows. Raises LockHeld.

    A holder that is in the middle of a statement is waited for, as long as it takes: an ALTER TABLE of hours that
    outlived its drainer must not begin again from nothing. Only `force` ends that too."""
    name = session.literal(lock_name(identity.cluster_id, identity.changefeed))
    ended = False
    wait_s = config.lock_wait_s
    while not _get(session, name, wait_s):
        wait_s = max(config.lock_wait_s, _AGAIN_S)
        holder = _holder(session, changefeed, name)
        if holder is None:
            continue  # given back just now
        if ended:
            raise LockHeld(
                f"{changefeed.label}: the lock is still held after its holder (connection {holder}) was ended"
            )
        if stop.is_set():
            raise LockHeld(f"{changefeed.label}: told to stop while waiting for connection {holder} to give it back")
        former = _holder_node(session, changefeed)
        if config.takeover != "force" and (config.takeover != "same-node" or former != identity.node_id):
            raise LockHeld(
                f"{changefeed.label} is held by drainer {former!r} through connection {holder}; stop that drainer, or "
                f'start this one with takeover = "force" to end its connection'
            )
        running = next((sql for command, sql in _process(session, holder) if command == "Query"), "")
        if running and config.takeover != "force":
            _log.warning(
                "waiting for a former drainer's statement", changefeed=changefeed.label, connection=holder, sql=running
            )
            continue
        _log.warning("ending the connection of a former drainer", changefeed=changefeed.label, connection=holder)
        try:
            session.execute((b"KILL TIDB %d" if session.flavour == "tidb" else b"KILL %d") % holder)
        except ServerError as error:
            if error.code != _UNKNOWN_THREAD:
                raise
        ended = True
    if _used(session, name) is None:
        _record(session, changefeed)


def _used(session: ServerSession, name: bytes) -> int | None:
    """Return the id of the connection that holds the lock, 0 if none does, None if the server does not report it (an
    older TiDB)."""
    try:
        return int(session.query(b"SELECT IS_USED_LOCK(%s)" % name)[0][0] or 0)
    except ServerError as error:
        if error.code == _NO_SUCH_FUNCTION:
            return None
        raise


def _holder(session: ServerSession, changefeed: Changefeed, name: bytes) -> int | None:
    """Return the id of the connection that holds the lock, None if none does. Raises LockHeld if it is not known."""
    used = _used(session, name)
    if used is not None:
        return used or None
    try:
        rows = session.query(
            b"SELECT connection FROM %s WHERE %s" % (changefeed.table("drainer_lock"), changefeed.where)
        )
    except ServerError as error:
        if error.code not in _NO_SUCH_TABLE:
            raise
        rows = []
    for (connection,) in rows:
        if _process(session, int(connection or 0)):
            return int(connection or 0)
    if _get(session, name, _AGAIN_S):
        session.query(b"SELECT RELEASE_LOCK(%s)" % name)
        return None
    raise LockHeld(
        f"{changefeed.label} is held by a connection that is not the one in drainer_lock, and this server has no "
        f"IS_USED_LOCK: end the former drainer, or its connection to the destination"
    )


def _record(session: ServerSession, changefeed: Changefeed) -> None:
    """Write down whose lock it is, for a successor on a server that cannot tell."""
    table = changefeed.table("drainer_lock")
    session.execute(
        b"CREATE DATABASE IF NOT EXISTS " + changefeed.schema + b" DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )
    session.execute(
        b"CREATE TABLE IF NOT EXISTS %s (cluster_id BIGINT UNSIGNED NOT NULL, changefeed VARCHAR(100) NOT NULL,"
        b" connection BIGINT UNSIGNED NOT NULL, PRIMARY KEY (cluster_id, changefeed))"
        b" DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin" % table
    )
    session.execute(
        b"REPLACE INTO %s VALUES (%d,%s,CONNECTION_ID())" % (table, changefeed.cluster_id, changefeed.name_literal)
    )


def _process(session: ServerSession, connection: int) -> list[tuple[str, str]]:
    """Return (command, statement) of a connection of this user, on this server or on another TiDB of the cluster; empty
    if it has ended."""
    ours = b"ID=%d AND USER=SUBSTRING_INDEX(USER(),'@',1)" % connection
    look = b"SELECT COMMAND, LEFT(COALESCE(INFO,''),200) FROM information_schema.%s WHERE " + ours
    rows = session.query(look % b"PROCESSLIST")
    if not rows and session.flavour == "tidb":
        with contextlib.suppress(ServerError):  # other servers are asked, and one may be away
            rows = session.query(look % b"CLUSTER_PROCESSLIST")
    return [(str(command), str(sql)) for command, sql in rows]


def release(session: ServerSession, identity: Identity) -> None:
    """Give the lock back. Closing the connection does the same."""
    with contextlib.suppress(ServerError):
        name = session.literal(lock_name(identity.cluster_id, identity.changefeed))
        session.query(b"SELECT RELEASE_LOCK(%s)" % name)


def _get(session: ServerSession, name: bytes, wait_s: int) -> bool:
    return session.query(b"SELECT GET_LOCK(%s,%d)" % (name, wait_s))[0][0] == 1


def _holder_node(session: ServerSession, changefeed: Changefeed) -> str:
    try:
        stored = position.store(session, changefeed).read()
    except ServerError as error:
        if error.code in _NO_SUCH_TABLE:
            return ""
        raise
    return stored.node_id if stored else ""


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
                release(self._session, self.identity)
            self.lose()

    def _locked(self) -> ServerSession:
        self.lose()
        timeout_s = self.config.read_timeout_s if self.joined else None
        session = connect(self.config, idle_s=_IDLE_S, read_timeout_s=timeout_s)
        self._session = session
        self.changefeed = Changefeed.of(self.config, self.identity, session)
        try:
            if not self.joined:
                acquire(session, self.config, self.identity, self.changefeed, self.stop)
        except BaseException:
            self.lose()
            raise
        return session
