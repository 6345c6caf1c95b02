"""The one door to PyMySQL: sessions with the required settings, statements as bytes, errors classified by their number.

A session is open until it is closed or lost. It never reconnects by itself: its user must find out what a lost
connection means (a commit whose answer was lost, a DDL that may still be running).
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from binlog.errors import ConfigError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.fields import is_loopback
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security
from pymysql.connections import MAX_PACKET_LEN, MySQLResult
from pymysql.constants import CLIENT, COMMAND, CR
from pymysql.err import OperationalError

from drainer.sink.errors import CommitRefused, DestinationError, DestinationRefused, Transient
from drainer.sink.mysql import session_settings
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.session_settings import Variable

# TLS to the server: its certificate and its name are verified unless the configuration says `skip-verify`.
#
# Without any TLS setting the connection is encrypted if the server offers TLS, and nothing is verified. An attacker on
# the network may then read the data or impersonate the server; a warning is logged once.

# CR_SSL_CONNECTION_ERROR: the server offers no TLS.
NO_TLS: Final = 2026


def _skip(config: ServerConfig) -> str:
    return (
        f"set [{config.section}.security] skip-verify = true to connect without (the server's identity is then not "
        f"verified)"
    )


def is_tls_required(config: ServerConfig) -> bool:
    return bool(config.ssl_ca or config.ssl_cert or config.ssl_key or config.skip_verify)


def tls_options(config: ServerConfig) -> dict[str, Any]:
    """Return the arguments of pymysql.connect for TLS. Raises DestinationRefused for files that cannot be used.

    The password is never sent in plain text to a server that is not verified."""
    options: dict[str, Any] = {}
    if is_tls_required(config):
        options["ssl"] = tls_context(config)
    if not is_tls_required(config) or config.skip_verify:
        options["auth_plugin_map"] = {b"mysql_clear_password": _NotInClear, b"dialog": _NotInClear}
    return options


def tls_context(config: ServerConfig) -> ssl.SSLContext:
    """The files are read at every connect, so that they can be renewed without a restart."""
    try:
        if config.ssl_ca:
            made = Security(config.ssl_ca, config.ssl_cert, config.ssl_key).ssl_context(server=False)
            assert made is not None, "TLS is on where a CA is set"
        elif config.skip_verify:
            made = unverified_tls()
            if config.ssl_cert:
                made.load_cert_chain(config.ssl_cert, config.ssl_key or None)
        else:
            raise ConfigError(f"ssl-cert is set without the ssl-ca that the server is verified with; {_skip(config)}")
    except (ConfigError, OSError) as error:
        raise DestinationRefused(f"{config.address}: [{config.section}.security]: {error}") from error
    if config.skip_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def unverified_tls() -> ssl.SSLContext:
    """For a connection that is encrypted if the server offers it and verifies nothing."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # TLS 1.2 and newer
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def tls_refusal(config: ServerConfig, error: BaseException) -> DestinationRefused | None:
    """Why the server is not trusted, if that is what this error says."""
    cause = getattr(error, "original_exception", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DestinationRefused(
            f"{config.address}: the server's certificate is refused: {cause.verify_message or cause}. Expected is a "
            f"certificate for {config.host!r} that is signed by {config.ssl_ca} and valid today; correct "
            f"[{config.section}] host, [{config.section}.security] ssl-ca or the server's certificate, or "
            f"{_skip(config)}"
        )
    if isinstance(error, OperationalError) and error.args[:1] == (NO_TLS,):
        return DestinationRefused(
            f"{config.address}: the server offers no TLS, which [{config.section}.security] requires; switch it on "
            f"there, or remove ssl-ca, ssl-cert, ssl-key and skip-verify to connect without"
        )
    return None


def report_tls(config: ServerConfig) -> None:
    """Log once what is not verified."""
    if config.skip_verify:
        _log.warning("skip-verify: the destination's certificate and name are not verified", address=config.address)
    elif not is_tls_required(config) and config.password and not is_loopback(config.host):
        _log.warning(
            "the destination's certificate is not verified, and the connection may not even be encrypted: set "
            "[syncer.to.security] ssl-ca",
            address=config.address,
        )


class _NotInClear:
    """Stands in for the authentication plugins that send the password as it is."""

    def __init__(self, _connection: object) -> None:
        pass

    def authenticate(self, _packet: object) -> None:
        raise OperationalError(
            2059,  # a plugin that cannot be used: refused, not tried again
            "the server asks for the password in clear text, and its certificate is not verified; set ssl-ca in its "
            "security section",
        )


# PyMySQL's connection for LOAD DATA LOCAL from memory, whatever file the server names.
#
# The protocol lets a server answer any statement with the name of a file of the client's, which is then sent. Here no
# file is ever opened: what is sent are the bytes that were offered for this one statement, once.
_PACKET_BYTES: Final = 1 << 16
_COUNTS: Final = re.compile(rb"(\d+)\D+(\d+)\D+(\d+)\D+(\d+)\D*\Z")
# The first byte of the packet that ends rows, which is shorter than one that begins with a length of eight bytes.
_ERROR, _END, _END_BYTES_MAX = 0xFF, 0xFE, 9


@dataclass(frozen=True, slots=True)
class Loaded:
    """The counts that the server reported. `skipped`: rows that it did not write."""

    records: int
    deleted: int
    skipped: int
    warnings: int


def counts(message: bytes) -> Loaded | None:
    """Parse the server's `Records: 3  Deleted: 0  Skipped: 0  Warnings: 0`, in any language. None for any other
    message."""
    found = _COUNTS.search(message)
    return None if found is None else Loaded(*(int(number) for number in found.groups()))


class _Result(MySQLResult):
    """The server's response to one statement."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        rows, connection.offered = connection.offered, None
        if rows is None:
            connection._force_close()
            raise OperationalError(
                CR.CR_SERVER_LOST, "the server asked for a file that was not offered to it; nothing was sent"
            )
        view = memoryview(rows)
        for begin in range(0, len(view), _PACKET_BYTES):
            connection.write_packet(bytes(view[begin : begin + _PACKET_BYTES]))
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())  # type: ignore[attr-defined]


class InfileConnection(pymysql.connections.Connection):
    """`offered`: what the next statement's LOCAL INFILE gets; taken away when it is sent."""

    offered: bytes | None = None
    _result: Any

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        """If TLS is neither required nor verified, PyMySQL would read all of the system's certificates for each
        connection, which takes 25 ms of CPU, and then verify nothing."""
        context: ssl.SSLContext = sslp or unverified_tls()
        return context

    def _read_query_result(self, unbuffered: bool = False) -> int:
        assert not unbuffered, "results are read whole"
        self._result = None
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)

    def packets(self, sql: bytes, block_bytes: int) -> tuple[int, Iterator[list[bytes]]]:
        """Run a query. Return the number of its columns, and its rows as they arrive, in blocks of packets."""
        connection: Any = self
        connection._execute_command(COMMAND.COM_QUERY, sql)
        count = int(connection._read_packet().read_length_encoded_integer())
        for _ in range(count + 1):  # descriptions of the columns, and their end
            connection._read_packet()
        return count, _blocks(connection, block_bytes)


def _blocks(connection: Any, block_bytes: int) -> Iterator[list[bytes]]:
    """Read the packets of rows up to their end. PyMySQL's own loop takes several times as long for each of them."""
    read = connection._read_bytes
    block: list[bytes] = []
    size = 0
    parts: list[bytes] = []  # of a packet of 16 MiB and more
    while True:
        head = read(4)
        length = head[0] | head[1] << 8 | head[2] << 16
        packet = read(length)
        if length == MAX_PACKET_LEN:
            parts.append(packet)
            continue
        if parts:
            packet, parts = b"".join([*parts, packet]), []
        elif packet[0] == _ERROR or (packet[0] == _END and length < _END_BYTES_MAX):
            connection._next_seq_id = (head[3] + 1) % 256
            if packet[0] == _ERROR:
                pymysql.err.raise_mysql_exception(packet)
            break
        block.append(packet)
        size += len(packet)
        if size >= block_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
DUPLICATE_KEY: Final = frozenset({1062, 1586})
_REFUSED: Final = frozenset({1044, 1045, 1129, 1130, 1142, 1227, 1698, 2059, 2061})
# 1053 shutdown, 1077 and 1079 normal shutdown, 1152/1184 aborted, 1158–1161 network, 1927 killed, 3169 killed,
# 4031 disconnected for inactivity, 1040 too many connections, 2xxx the client's own.
# Of TiDB, whose PD or TiKV does not answer: 9001, 9002, 9003 busy, 9005, 9010 stale command, 9011 no timestamp.
_LOST: Final = frozenset(
    {0, 1040, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 2002, 2003, 2006, 2013}
    | {2014, 2026, 2055, 3169, 4031}
    | {9001, 9002, 9003, 9005, 9010, 9011}
)
# Of TiDB, which has rolled back or refused to commit: 8002, 8005, 9007 write conflict, 8022 may be tried again, 8027,
# 8028 and 8113 the schema has changed meanwhile, 8229 locks outlived their time, 9004 somebody's lock was in the way.
_AGAIN: Final = frozenset({DEADLOCK, LOCK_TIMEOUT, 8002, 8005, 8022, 8027, 8028, 8113, 8229, 9004, 9007})
_CONNECT_TIMEOUT_S: Final = 10
_UNKNOWN_VARIABLE: Final = 1193
_ASSERTION: Final = 8141


class ServerError(DestinationError):
    """The server answered with an error; the session is usable."""

    def __init__(self, code: int, detail: str, address: str) -> None:
        super().__init__(f"{address}: error {code}: {detail}")
        self.code = code
        self.detail = detail


class ConnectionLost(Transient):
    """No answer: what was under way may or may not have happened. The session is of no more use."""


class Retry(Transient):
    """Deadlock or lock timeout: the server rolled back, run the whole transaction again."""


_log = get_logger(__name__)

Cell = int | float | str | bytes | None


class ServerSession:
    """One connection, with autocommit outside `begin` … `commit`."""

    def __init__(self, config: ServerConfig, connection: InfileConnection) -> None:
        self.address = config.address
        self._connection = connection
        self.warning_count = 0
        self.version = ""
        self.flavour = "mysql"
        self.packet_bytes_max = 1 << 22
        self.local_infile = False  # whether the server takes LOAD DATA LOCAL
        self._asserts_strictly = False

    def execute(self, sql: bytes) -> int:
        """Run one statement and return its affected rows (for UPDATE: matched rows)."""
        with self._errors():
            affected = int(self._connection.query(sql))  # bytes pass unchanged
        result = self._connection._result  # nothing public counts warnings
        self.warning_count = int(result.warning_count or 0)
        return affected

    def load(self, sql: bytes, rows: bytes) -> Loaded | None:
        """Run a LOAD DATA LOCAL whose file is `rows`. None where the server's answer does not tell what it did."""
        self._connection.offered = rows
        try:
            self.execute(sql)
        finally:
            self._connection.offered = None
        return counts(self._connection._result.message or b"")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the errors of PyMySQL."""
        try:
            yield
        except pymysql.err.Error as error:
            # Not stored in a local variable: the error would refer to its own frame, and so keep this connection and
            # its locks alive.
            raise self._error(error) from error
        except OSError as error:
            raise ConnectionLost(f"{self.address}: {error}") from error

    def _error(self, error: pymysql.err.Error) -> DestinationError:
        translated = _translated(error, self.address)
        if isinstance(translated, ServerError) and translated.code == _ASSERTION:
            return self._assert_strictly(translated)
        return translated

    def _assert_strictly(self, error: ServerError) -> DestinationError:
        """TiDB has refused a transaction because of an assertion of its own about which rows exist.

        On its level FAST some versions assert wrongly about a table whose partitions were once reorganized: a row that
        is deleted and written in one transaction (REPLACE does so) is said to be new. STRICT asserts each row rightly,
        and slower; what is refused then is inconsistent indeed."""
        if self._asserts_strictly:
            return error
        _log.warning("TiDB's assertion failed; trying again with tidb_txn_assertion_level = STRICT", error=str(error))
        self.execute(b"SET SESSION tidb_txn_assertion_level='STRICT'")
        self._asserts_strictly = True
        return Retry(str(error))

    def query(self, sql: bytes) -> list[tuple[Cell, ...]]:
        """Run one statement and return its rows, all of them."""
        self.execute(sql)
        result = self._connection._result
        return [tuple(row) for row in result.rows or ()]

    def packets(self, sql: bytes, block_bytes: int) -> tuple[int, Iterator[list[bytes]]]:
        """Run one query. Return the number of its columns, and its rows in blocks of about so many bytes, each row as
        the server sends it. Until the last block has been read the session can do nothing else but be closed."""
        with self._errors():
            count, blocks = self._connection.packets(sql, block_bytes)
        return count, self._read(blocks)

    def _read(self, blocks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        with self._errors():
            yield from blocks

    def show(self, what: bytes) -> list[tuple[str | None, ...]]:
        """The rows of a SHOW as texts. Bytes that are no text, such as those of a BINARY default, become escapes."""
        self._connection.use_unicode = False
        try:
            rows = self.query(b"SHOW " + what)
        finally:
            self._connection.use_unicode = True
        return [tuple(cell if cell is None else _text(cell) for cell in row) for row in rows]

    def show_create(self, what: bytes) -> str:
        """SHOW CREATE of a table or database, named with its kind."""
        return str(self.show(b"CREATE " + what)[0][1])

    def warnings(self) -> list[tuple[str, int, str]]:
        """(level, code, text) of the last statement."""
        return [(str(level), int(code or 0), str(text)) for level, code, text in self.query(b"SHOW WARNINGS")]

    def begin(self) -> None:
        self.execute(b"START TRANSACTION")

    def commit(self) -> None:
        """Raises ConnectionLost when the answer is missing: the transaction may be committed."""
        self.execute(b"COMMIT")

    def rollback(self) -> None:
        """Give up what was begun."""
        with contextlib.suppress(ConnectionLost, ServerError):
            self.execute(b"ROLLBACK")

    @contextlib.contextmanager
    def transaction(self, what: str, *, before: str = "", after: str = "") -> Iterator[None]:
        """Commit what the block writes; if it raises, roll back. `before`, `after`: crash points around the commit.

        Raises CommitRefused, which names `what`, besides what the block and the connection raise."""
        self.begin()
        try:
            yield
        except ConnectionLost:  # which rolls back by itself
            raise
        except BaseException:
            self.rollback()
            raise
        if before:
            crash_point(before)
        try:
            self.commit()
        except ServerError as error:
            raise CommitRefused(f"{what}: COMMIT is refused, nothing of it is written: {error}") from error
        if after:
            crash_point(after)

    def bound(self, text: str, values: Iterable[int | str | None], names: Mapping[str, str] | None = None) -> bytes:
        """A statement. In its text a `?` stands for each value, and `{name}` for what `names` has under it."""
        first, *rest = (piece.format_map(names or {}) for piece in text.split("?"))
        pieces = [first.encode()]
        for value, piece in zip(values, rest, strict=True):
            literal = b"NULL" if value is None else b"%d" % value if isinstance(value, int) else self.literal(value)
            pieces += (literal, piece.encode())
        return b"".join(pieces)

    def literal(self, value: str) -> bytes:
        """A quoted string literal."""
        return self._connection.escape(value).encode()

    def close(self) -> None:
        with contextlib.suppress(pymysql.err.Error, OSError):
            self._connection.close()


def _text(cell: int | float | str | bytes) -> str:
    return cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else str(cell)


def connect(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> ServerSession:
    """Open a session with our settings. Raises ConnectionLost or DestinationRefused.

    The server ends it after `idle_s` without a statement, so that a stopped process does not keep its locks for
    ever. `read_timeout_s` None: a statement may take any time; a dead peer is noticed by the kernel's probes."""
    try:
        raw = InfileConnection(
            host=config.host,
            port=config.port,
            user=config.user,
            password=config.password,
            charset="utf8mb4",
            autocommit=True,
            # FOUND_ROWS: a fence that sets what is already there must still count as one row.
            client_flag=CLIENT.FOUND_ROWS | (CLIENT.LOCAL_FILES if config.load_data == "auto" else 0),
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            write_timeout=read_timeout_s,
            **tls_options(config),
        )
    except pymysql.err.Error as error:
        raise tls_refusal(config, error) or _translated(error, config.address, connecting=True) from error
    except OSError as error:
        raise ConnectionLost(f"{config.address}: {error}") from error
    _probe(raw)
    session = ServerSession(config, raw)
    try:
        _prepare(session, config, idle_s)
    except (ServerError, ConnectionLost, DestinationRefused, Retry):
        session.close()
        raise
    return session


def _probe(connection: pymysql.connections.Connection[Any]) -> None:
    """Detect within two minutes that the server has disappeared silently; the kernel's default is two hours."""
    raw = connection._sock  # type: ignore[attr-defined]
    if isinstance(raw, socket.socket) and raw.family in (socket.AF_INET, socket.AF_INET6):
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):  # not everywhere
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _prepare(session: ServerSession, config: ServerConfig, idle_s: int) -> None:
    version, packet = session.query(b"SELECT VERSION(), @@max_allowed_packet LIMIT 1")[0]
    session.version = str(version)
    lowered = session.version.lower()
    session.flavour = "mariadb" if "mariadb" in lowered else "tidb" if "tidb" in lowered else "mysql"
    session.packet_bytes_max = int(packet or 1 << 22)
    session.execute(b"SET NAMES utf8mb4")  # the server's init_connect may have said otherwise
    fixed = (*session_settings.SETTINGS, Variable("wait_timeout", str(idle_s)))
    session.execute(("SET SESSION " + ", ".join(f"{name}={value}" for name, value, _ in fixed)).encode())
    session.execute(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    _set_known(session, session_settings.OPTIONAL + (session_settings.TIDB if session.flavour == "tidb" else ()))
    _set_params(session, config)
    _check(session, config)


def _set_known(session: ServerSession, variables: Iterable[Variable]) -> None:
    """Set the variables that this server has. Values that it did not accept are found when they are read back."""
    for name, value, _ in variables:
        try:
            session.execute(f"SET SESSION {name}={value}".encode())
        except ServerError as error:
            if error.code != _UNKNOWN_VARIABLE:
                _log.debug("session variable not set", address=session.address, name=name, error=str(error))


def _set_params(session: ServerSession, config: ServerConfig) -> None:
    for name, value in config.params:
        if name.lower() == "time_zone":
            # Values are in UTC and TIMESTAMP is stored in UTC: another time zone of the session would shift them.
            _log.info("params.time_zone is not needed and left out", address=config.address, value=value)
            continue
        try:
            plain = value.lstrip("-").isdigit()
            session.execute(f"SET SESSION {name}=".encode() + (value.encode() if plain else session.literal(value)))
        except ServerError as error:
            raise DestinationRefused(
                f"{config.address} rejects the session variable {name}={value!r}: {error}"
            ) from error


def _check(session: ServerSession, config: ServerConfig) -> None:
    """Raise DestinationRefused if the value of a variable would make rows wrong, regardless of where it was set."""
    names = ",".join(f"'{name}'" for name in session_settings.READ_BACK)
    rows = session.query(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})".encode())
    shown = {str(name): str(value) for name, value in rows}
    with contextlib.suppress(ServerError):  # a limit hides variables; LIMIT takes its place
        shown["sql_select_limit"] = str(session.query(b"SELECT @@SESSION.sql_select_limit LIMIT 1")[0][0])
    found = list(session_settings.wrong(session.flavour, shown))
    if found:
        raise DestinationRefused(
            f"{config.address}: this session cannot be written through; correct [{config.section}] params or the "
            f"server's settings: {'; '.join(found)}"
        )
    session.local_infile = config.load_data == "auto" and session_settings.takes_files(session.flavour, shown)


def _translated(error: pymysql.err.Error, address: str, *, connecting: bool = False) -> DestinationError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    detail = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code in _AGAIN:
        return Retry(f"{address}: error {code}: {detail}")
    if code in _LOST:
        return ConnectionLost(f"{address}: error {code}: {detail}")
    if connecting and code in _REFUSED:
        return DestinationRefused(f"{address}: error {code}: {detail}")
    return ServerError(code, detail, address)


# Keeps a worker's connections from one task to the next, because opening one takes as long as writing a thousand
# rows.
#
# A kept session is idle, outside any transaction, and its last work succeeded; all other sessions are closed. The
# connection of a kept session may have been lost meanwhile; its next user then gets ConnectionLost, as with any
# session.

# The server ends what is idle; a worker that has nothing to do for this long is not worth a connection.
KEPT_S: Final = 30.0
KEPT_MAX: Final = 2

_kept: dict[ServerConfig, list[tuple[float, ServerSession]]] = {}
_lock = threading.Lock()


def take(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> ServerSession:
    """A kept session of these settings, or a new one. Raises as `connect`."""
    with _lock:
        found = _kept.get(config, [])
        fresh = [(left_at, session) for left_at, session in found if time.monotonic() - left_at < KEPT_S]
        stale = [session for left_at, session in found if time.monotonic() - left_at >= KEPT_S]
        taken = fresh.pop()[1] if fresh else None
        _kept[config] = fresh
    for session in stale:
        session.close()
    return taken or connect(config, idle_s=idle_s, read_timeout_s=read_timeout_s)


def give_back(config: ServerConfig, session: ServerSession) -> None:
    """For the next task. Only a session that is in no transaction."""
    with _lock:
        kept = _kept.setdefault(config, [])
        if len(kept) < KEPT_MAX:
            kept.append((time.monotonic(), session))
            return
    session.close()
