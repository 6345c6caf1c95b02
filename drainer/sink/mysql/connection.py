"""The one door to PyMySQL: a session with our settings, statements as bytes, errors told apart by number.

A session is open until it is closed or lost. It never reconnects by itself: what a lost connection means (a
commit whose answer is missing, a DDL that may still run) is for its user to find out.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

import pymysql
from binlog.log import get_logger
from pymysql.constants import CLIENT

from drainer.sink.errors import DestinationError, DestinationRefused
from drainer.sink.mysql.config import ServerConfig

# Non-strict, because strict refuses upstream's ENUM value 0; statements that write check warnings instead.
SQL_MODE: Final = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"

SETTINGS: Final = (
    ("sql_mode", f"'{SQL_MODE}'"),
    ("time_zone", "'+00:00'"),
    ("foreign_key_checks", "0"),  # rule 13: upstream wrote cascaded rows itself
    ("unique_checks", "1"),
    ("sql_notes", "0"),
    ("max_error_count", "65535"),  # every warning of a 500-row statement must be seen
)
# Tried, and ignored where unknown (D-LD-01); lc_messages because warnings are read.
OPTIONAL: Final = (
    ("lc_messages", "'en_US'"),
    ("allow_auto_random_explicit_insert", "1"),
    ("tidb_placement_mode", "'ignore'"),
    ("innodb_lock_wait_timeout", "50"),
    ("explicit_defaults_for_timestamp", "1"),  # or a new TIMESTAMP NOT NULL holds the moment at which it is added here
    ("check_constraint_checks", "0"),  # TiDB parses CHECK and, by default, does not enforce it
)

DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
DUPLICATE_KEY: Final = frozenset({1062, 1586})
_REFUSED: Final = frozenset({1044, 1045, 1129, 1130, 1142, 1227, 1698, 2059, 2061})
# 1053 shutdown, 1077 and 1079 normal shutdown, 1152/1184 aborted, 1158–1161 network, 1927 killed, 3169 killed,
# 4031 disconnected for inactivity, 1040 too many connections, 2xxx the client's own.
_LOST: Final = frozenset(
    {0, 1040, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 2002, 2003, 2006, 2013}
    | {2014, 2026, 2055, 3169, 4031}
)


class ServerError(DestinationError):
    """The server answered with an error; the session is usable."""

    def __init__(self, code: int, detail: str, address: str) -> None:
        super().__init__(f"{address}: error {code}: {detail}")
        self.code = code
        self.detail = detail


class ConnectionLost(DestinationError):
    """No answer: what was under way may or may not have happened. The session is of no more use."""


class Retry(DestinationError):
    """Deadlock or lock timeout: the server rolled back, run the whole transaction again."""


_log = get_logger(__name__)

Cell = int | float | str | bytes | None


class Session:
    """One connection with autocommit on outside `begin` … `commit`."""

    def __init__(self, config: ServerConfig, connection: pymysql.connections.Connection[Any]) -> None:
        self._config = config
        self._connection = connection
        self.warning_count = 0
        self.version = ""
        self.flavour = "mysql"
        self.packet_bytes_max = 1 << 22

    @property
    def connection_id(self) -> int:
        return int(self._connection.thread_id())  # type: ignore[no-untyped-call]

    @property
    def address(self) -> str:
        return self._config.address

    def execute(self, sql: bytes) -> int:
        """Run one statement and return its affected rows (for UPDATE: matched rows)."""
        try:
            affected = int(self._connection.query(sql))  # bytes pass unchanged
        except pymysql.err.Error as error:
            raise _translated(error, self._config.address) from error
        except OSError as error:
            raise ConnectionLost(f"{self._config.address}: {error}") from error
        result = self._connection._result  # type: ignore[attr-defined]  # nothing public counts warnings
        self.warning_count = int(result.warning_count or 0)
        return affected

    def query(self, sql: bytes) -> list[tuple[Cell, ...]]:
        """Run one statement and return its rows, all of them."""
        self.execute(sql)
        result = self._connection._result  # type: ignore[attr-defined]
        return [tuple(row) for row in result.rows or ()]

    def warnings(self) -> list[tuple[str, int, str]]:
        """(level, code, text) of the last statement."""
        return [(str(level), int(code or 0), str(text)) for level, code, text in self.query(b"SHOW WARNINGS")]

    def begin(self) -> None:
        self.execute(b"START TRANSACTION")

    def commit(self) -> None:
        """Raises ConnectionLost when the answer is missing: the transaction may be committed."""
        self.execute(b"COMMIT")

    def rollback(self) -> None:
        """Give up what was begun; a lost connection rolls back by itself."""
        with contextlib.suppress(ConnectionLost, ServerError):
            self.execute(b"ROLLBACK")

    def literal(self, value: str) -> bytes:
        """A quoted string literal."""
        return self._connection.escape(value).encode()

    def close(self) -> None:
        with contextlib.suppress(pymysql.err.Error, OSError):
            self._connection.close()


def connect(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> Session:
    """Open a session with our settings. Raises ConnectionLost or DestinationRefused.

    The server ends it after `idle_s` without a statement, so that a stopped process does not keep its locks for
    ever. `read_timeout_s` None: a statement may take any time; a dead peer is noticed by the kernel's probes."""
    tls: dict[str, Any] = {}
    if config.ssl_ca or config.ssl_cert:
        tls = {
            "ssl_ca": config.ssl_ca or None,
            "ssl_cert": config.ssl_cert or None,
            "ssl_key": config.ssl_key or None,
        }
    try:
        raw: pymysql.connections.Connection[Any] = pymysql.connect(
            host=config.host,
            port=config.port,
            user=config.user,
            password=config.password,
            charset="utf8mb4",
            autocommit=True,
            # FOUND_ROWS: a fence that sets what is already there must still count as one row.
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=config.connect_timeout_s,
            read_timeout=read_timeout_s,
            write_timeout=read_timeout_s,
            **tls,
        )
    except pymysql.err.Error as error:
        raise _translated(error, config.address, connecting=True) from error
    except OSError as error:
        raise ConnectionLost(f"{config.address}: {error}") from error
    _probe(raw)
    session = Session(config, raw)
    try:
        _prepare(session, config, idle_s)
    except (ServerError, ConnectionLost, DestinationRefused, Retry):
        session.close()
        raise
    return session


def _probe(connection: pymysql.connections.Connection[Any]) -> None:
    """A peer that is gone without a word is noticed within two minutes, not the kernel's two hours."""
    raw = connection._sock  # type: ignore[attr-defined]
    if isinstance(raw, socket.socket) and raw.family in (socket.AF_INET, socket.AF_INET6):
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):  # not everywhere
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _prepare(session: Session, config: ServerConfig, idle_s: int) -> None:
    fixed = (*SETTINGS, ("wait_timeout", str(idle_s)))
    session.execute(("SET SESSION " + ", ".join(f"{name}={value}" for name, value in fixed)).encode())
    session.execute(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    for name, value in OPTIONAL:
        with contextlib.suppress(ServerError):
            session.execute(f"SET SESSION {name}={value}".encode())
    for name, value in config.params:
        if not _allowed(config, name.lower(), value):
            continue
        try:
            plain = value.lstrip("-").isdigit()
            session.execute(f"SET SESSION {name}=".encode() + (value.encode() if plain else session.literal(value)))
        except ServerError as error:
            raise DestinationRefused(
                f"{config.address} rejects the session variable {name}={value!r}: {error}"
            ) from error
    version, packet = session.query(b"SELECT VERSION(), @@max_allowed_packet")[0]
    session.version = str(version)
    lowered = session.version.lower()
    session.flavour = "mariadb" if "mariadb" in lowered else "tidb" if "tidb" in lowered else "mysql"
    session.packet_bytes_max = int(packet or 1 << 22)


def _allowed(config: ServerConfig, name: str, value: str) -> bool:
    """Whether a configured variable is set. Raises DestinationRefused where it would make rows wrong."""
    if name == "time_zone":
        # Values come in UTC and TIMESTAMP is stored in UTC: another zone for the session would only shift them.
        _log.info("params.time_zone is not needed and left out", address=config.address, value=value)
        return False
    wrong = (name == "foreign_key_checks" and value.upper() not in ("0", "OFF")) or (
        name == "sql_mode" and "NO_BACKSLASH_ESCAPES" in value.upper()
    )
    if wrong:
        raise DestinationRefused(f"{config.address}: params.{name} = {value!r} would lose rows or change values")
    return True


def _translated(error: pymysql.err.Error, address: str, *, connecting: bool = False) -> DestinationError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    detail = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code in (DEADLOCK, LOCK_TIMEOUT):
        return Retry(f"{address}: error {code}: {detail}")
    if code in _LOST:
        return ConnectionLost(f"{address}: error {code}: {detail}")
    if connecting and code in _REFUSED:
        return DestinationRefused(f"{address}: error {code}: {detail}")
    return ServerError(code, detail, address)
