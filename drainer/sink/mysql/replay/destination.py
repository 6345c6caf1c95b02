"""A server as a replayer's destination. The position is written in one transaction with the rows. A DDL commits
implicitly: it is stored with the position, and DdlRun runs it once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import tzinfo
from functools import partial
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.tidb.types import Tp

from drainer.ddl.lexer import quoted, tokens
from drainer.ddl.table_diff import named_tables, undoes_itself
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, Image, RowEvent
from drainer.sink.base import Identity
from drainer.sink.errors import DestinationError, DestinationRefused
from drainer.sink.mysql.config import MySQLSection, ServerConfig
from drainer.sink.mysql.connection import Cell, ConnectionLost, Retry, ServerError, ServerSession, connect
from drainer.sink.mysql.ddl.fingerprint import Fingerprint, Name, has_run, run_marked
from drainer.sink.mysql.ddl.runner import IGNORABLE
from drainer.sink.mysql.fenced_session import lock_name, statement_lock
from drainer.sink.mysql.position import consumer_store
from drainer.sink.mysql.replay.statements import RowStatement, TableThere, statements
from drainer.sink.mysql.rows.format import quote
from drainer.sink.mysql.rows.unique_keys import read
from drainer.sink.mysql.rows.writer import AT_ROW, is_computed, literal_at, stored_exactly
from drainer.sink.mysql.snapshot import ServerSnapshot
from drainer.sink.position import Value, tuples
from drainer.sink.replay import Replayed, ReplayedDdl, ReplayFailed, ReplaySettings, never, to_utc
from drainer.sink.retry import RetryDeadline
from drainer.sink.settings import SyncerSettings

# Stores the position of a replay, and the DDL after it that has not ended, in a table of `tidb_binlog`.

_SCHEMA = "tidb_binlog"


class State:
    """The row of one replay. Its position changes only if it is the one that this process stored or read last."""

    _key = "name"

    def __init__(self, address: str, settings: ReplaySettings) -> None:
        self._address = address
        self._settings = settings
        self._table = quoted(_SCHEMA, settings.table)
        self._stored = ""

    def open(self, session: ServerSession) -> str:
        """Create table and row, and return the position, "" at the beginning."""
        session.execute(b"CREATE DATABASE IF NOT EXISTS `tidb_binlog`")
        self._prepare(session)
        self._stored = self._read(session)[0]
        return self._stored

    def _prepare(self, session: ServerSession) -> None:
        columns = "name VARCHAR(100) NOT NULL PRIMARY KEY, position LONGTEXT NOT NULL, ddl LONGTEXT"
        options = "DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) {options}".encode())
        insert = f"INSERT IGNORE INTO {self._table} (name, position) VALUES (?,'')"
        session.execute(session.bound(insert, (self._settings.name,)))

    def is_at(self, session: ServerSession, position: str) -> bool:
        """Return whether this position is stored. Raises DestinationRefused if another process has stored one."""
        found, _ = self._read(session)
        if found not in (position, self._stored):
            raise self._shared()
        return found == position

    def move(self, session: ServerSession, position: str, ddl: str | None) -> None:
        """Store a position and a DDL after it, in the session's transaction. Raises as `is_at`."""
        update = self._update(session, "position=?, ddl=?", position, ddl)
        if session.execute(update + session.bound(" AND position=?", (self._stored,))) != 1:
            raise self._shared()

    def moved(self, position: str) -> None:
        """The transaction of `move` was committed."""
        self._stored = position

    def ddl(self, session: ServerSession) -> str | None:
        return self._read(session)[1]

    def store_ddl(self, session: ServerSession, ddl: str | None) -> None:
        """Replace the stored DDL; None removes it."""
        session.execute(self._update(session, "ddl=?", ddl))

    def remedy(self, session: ServerSession, commit_ts: int) -> str:
        """Say how an operator leaves out the stored DDL."""
        if self._settings.remedy:
            return self._settings.remedy.format(commit_ts=commit_ts)
        return self._update(session, "ddl=NULL").decode()

    def _update(self, session: ServerSession, to: str, *values: Value) -> bytes:
        """The statement that changes this row."""
        return session.bound(f"UPDATE {self._table} SET {to} WHERE {self._key}=?", (*values, self._settings.name))

    def _rows(self, session: ServerSession, columns: str) -> list[tuple[Cell, ...]]:
        query = f"SELECT {columns} FROM {self._table} WHERE {self._key}=?"
        return session.query(session.bound(query, (self._settings.name,)))

    def _read(self, session: ServerSession) -> tuple[str, str | None]:
        ((position, ddl),) = self._rows(session, "position, ddl")
        return str(position), None if ddl is None else str(ddl)

    def _shared(self) -> DestinationRefused:
        return DestinationRefused(
            f"{self._address}: another {self._settings.program} named {self._settings.name} writes here, too"
        )


class ArbiterState(State):
    """The row of one topic in the table of the original's arbiter: topic_name, ts, status, and two columns of ours,
    `position` and `ddl`. The original replaces the row, which leaves ours NULL, so what it stored is known from what we
    did; it is the position {"ts", "status"}, and so is what a person wrote over it. While a DDL is stored, `ts` is
    below it: the original would run it. There may be no row."""

    _key = "topic_name"

    def _prepare(self, session: ServerSession) -> None:
        columns = "topic_name VARCHAR(255) PRIMARY KEY, ts BIGINT NOT NULL, status INT NOT NULL"
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})".encode())
        query = "SELECT LOWER(COLUMN_NAME) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=? AND TABLE_NAME=?"
        found = session.query(session.bound(query, (_SCHEMA, self._settings.table)))
        for name in ("position", "ddl"):
            if (name,) not in found:
                kind = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                session.execute(f"ALTER TABLE {self._table} ADD COLUMN {quoted(name)} {kind}".encode())

    def move(self, session: ServerSession, position: str, ddl: str | None) -> None:
        at, stored = json.loads(position), json.loads(self._stored or "{}")
        if not stored:
            insert = f"INSERT IGNORE INTO {self._table} (topic_name, ts, status, position, ddl) VALUES (?,?,?,?,?)"
            sql = session.bound(insert, (self._settings.name, at["ts"], at["status"], position, ddl))
        else:
            to, values = "position=?, ddl=?, status=?", [position, ddl, at["status"]]
            if ddl is None:
                to, values = f"{to}, ts=?", [*values, at["ts"]]
            sql = self._update(session, to, *values)
            if "offset" in stored:
                sql += session.bound(" AND position=?", (self._stored,))
            else:
                sql += b" AND ts=%d AND status=%d AND ddl IS NULL" % (stored["ts"], stored["status"])
        if session.execute(sql) != 1:
            raise self._shared()

    def store_ddl(self, session: ServerSession, ddl: str | None) -> None:
        if ddl is not None:
            super().store_ddl(session, ddl)
            return
        session.execute(self._update(session, "ddl=NULL, ts=?", json.loads(self._stored)["ts"]))

    def remedy(self, session: ServerSession, commit_ts: int) -> str:
        return self._update(session, "ddl=NULL, ts=?", commit_ts).decode()

    def _read(self, session: ServerSession) -> tuple[str, str | None]:
        rows = self._rows(session, "position, ddl, ts, status")
        if not rows:
            return "", None
        ((text, ddl, ts, status),) = rows
        if ddl is not None:
            return str(text), str(ddl)
        at = {"ts": ts, "status": status}
        if text is None or not at.items() <= json.loads(str(text)).items():
            return json.dumps(at), None
        return str(text), None


_IDLE_S: Final = 8 * 3600
# Of databases that upstream's text creates without naming a character set, as TiDB has it, whatever the server's is.
_DEFAULTS: Final = b"SET SESSION character_set_server=utf8mb4, collation_server=utf8mb4_bin"


# Rows that are not of a batch into a server, in one session: how it has their tables, statements, and its warnings.
# Rows of messages and of files with values as a server in UTC takes them. Pure.
_TYPES: Final = {"decimal": Tp.NEWDECIMAL, "float": Tp.FLOAT, "json": Tp.JSON}


def typed(row: RowEvent, there: TableThere, zone: tzinfo | None) -> RowEvent:
    """Return a row with the types of the destination's columns, because not every protocol has upstream's. An update
    has an old value of each column; one whose message has only the new row is an insert. `zone`: that of upstream's
    TIMESTAMPs (those of the destination if upstream's types are not known), None: UTC. Raises MessageError."""
    if row.change is Change.DELETE or row.new is None:
        old = {**(row.new or {}), **(row.old or row.key or {})}
        return row._replace(change=Change.DELETE, old=_image(old, there, zone), new=None)
    new = _image(row.new, there, zone)
    if row.old is None:
        return row._replace(change=Change.INSERT, new=new)
    old = {name: row.old.get(name, cell) for name, cell in row.new.items()}
    return row._replace(change=Change.UPDATE, old=_image(old, there, zone), new=new)


def _image(image: Image, there: TableThere, zone: tzinfo | None) -> Image:
    return {name: _cell(name, cell, there.types.get(name.lower()), zone) for name, cell in image.items()}


def _cell(name: str, cell: ColumnValue, kind: str | None, zone: tzinfo | None) -> ColumnValue:
    if kind is None:
        raise MessageError(f"the destination has no column `{name}`")
    value = cell.value
    is_timestamp = cell.type_code == Tp.TIMESTAMP if cell.type_code else kind == "timestamp"
    if kind == "year" and isinstance(value, str):  # the text 0 is 2000 for a server, the number is 0000
        value = int(value)
    elif kind == "float" and isinstance(value, float):
        # The shortest digits of a single are those of another double, which for the largest one is out of range.
        value = float(np.float32(value))
    elif is_timestamp and isinstance(value, str) and zone is not None:
        value = to_utc(value, zone)
    return ColumnValue(value, _TYPES.get(kind, 0), type_name=kind)


_GENERATED: Final = re.compile(r"\b(?:VIRTUAL|STORED|PERSISTENT)\b", re.IGNORECASE)


class RowWriter:
    """`safe`: rows may be there already, or be missing (`D-LD-11`); `zone`: that of TIMESTAMPs in events, the session's
    is UTC. Tables are asked for once, until `forget`."""

    def __init__(self, *, safe: bool, zone: str) -> None:
        self._safe = safe
        self._zone = None if zone == "UTC" else ZoneInfo(zone)
        self._tables: dict[tuple[str, str], TableThere] = {}

    def forget(self) -> None:
        """Tables may have changed."""
        self._tables.clear()

    def write(self, session: ServerSession, commit_ts: int, events: Sequence[RowEvent]) -> None:
        """In order, in the session's transaction. `commit_ts`: for errors. Raises ReplayFailed."""
        table, found = "", list[RowEvent]()
        try:
            for event in events:
                table = f"`{event.schema}`.`{event.table}`"
                found.append(typed(event, self._table(session, event.schema, event.table), self._zone))
            for statement in statements(found, self._tables, session.flavour, safe=self._safe):
                table = f"`{statement.schema}`.`{statement.table}`"
                self._run(session, statement, commit_ts)
        except (ServerError, MessageError, DecodeError) as error:
            raise ReplayFailed(f"{table}: {error}", commit_ts=commit_ts, table=table) from error

    def _table(self, session: ServerSession, schema: str, table: str) -> TableThere:
        """How the destination has it. Raises MessageError where it does not."""
        found = self._tables.get((schema, table))
        if found is None:
            found = self._tables[schema, table] = _look(session, schema, table)
        return found

    def _run(self, session: ServerSession, statement: RowStatement, commit_ts: int) -> None:
        found = session.execute(statement.sql)
        table = f"`{statement.schema}`.`{statement.table}`"
        if statement.rows not in (-1, found):
            raise ReplayFailed(
                f"{table}: {found} rows were found, and {statement.rows} should be: the destination is not what it was "
                f"upstream at that time; -safe-mode goes over it. The statement: {statement.sql[:200]!r}",
                commit_ts=commit_ts,
                table=table,
            )
        if session.warning_count:
            _judge(session, statement, table, commit_ts)


def _look(session: ServerSession, schema: str, table: str) -> TableThere:
    found = read(session, schema, table)
    if found is None:
        raise MessageError("there is no such table in the destination")
    keys = sorted(found[0], key=lambda key: key.name.upper() != "PRIMARY")
    parts = [tuple(part.column.lower() for part in key.parts) for key in keys]
    columns = session.query(
        b"SELECT COLUMN_NAME, EXTRA, DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        % (session.literal(schema), session.literal(table))
    )
    generated = frozenset(str(column).lower() for column, extra, _ in columns if _GENERATED.search(str(extra)))
    types = {str(column).lower(): str(kind).lower() for column, _, kind in columns}
    return TableThere(tuple(key for key in parts if "" not in key), generated, types)


def _judge(session: ServerSession, statement: RowStatement, table: str, commit_ts: int) -> None:
    """A value that the server stored otherwise than it is."""
    for level, code, text in session.warnings():
        if level == "Note" or AT_ROW.search(text) is None or is_computed(statement.columns, text):
            continue
        if stored_exactly(code, literal_at(statement.columns, statement.tuples, text)):
            continue
        raise ReplayFailed(f"{table}: {code}: {text}", commit_ts=commit_ts, table=table)


# Runs the stored DDL of a replay exactly once, even if the program or the server dies in between.
#
# The DDL is stored with the rows before it, run, and removed. fingerprint.run_marked runs each of its statements. A DDL
# that the server refused stays, without the mark: it has not run, so what is done to its tables from now on must not
# suggest that it has.
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredDdl:
    """A stored DDL. See fingerprint.Statements. `at`: the index of its next statement."""

    ddl: ReplayedDdl
    at: int = 0
    before: Fingerprint | None = None

    @property
    def statement(self) -> str:
        return self.ddl.statements[self.at]

    @property
    def schemas(self) -> Sequence[str]:
        return ()

    @property
    def tables(self) -> Sequence[Name]:
        return named_tables(self.statement, self.ddl.schema, self.ddl.table)

    def begun(self, before: Fingerprint) -> StoredDdl:
        return replace(self, before=before)

    def after_statement(self) -> StoredDdl:
        return replace(self, at=self.at + 1, before=None)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> StoredDdl:
        found = tuples(json.loads(text))
        return cls(ReplayedDdl(**found["ddl"]), found["at"], found["before"])


class DdlRun:
    """Runs the stored DDL in one session."""

    def __init__(self, session: ServerSession, state: State, settings: ReplaySettings) -> None:
        self._session = session
        self._state = state
        self._lock = lock_name(settings.table, settings.name)
        self._busy = f"a DDL of a {settings.program} of this name is still running"

    def run(self, is_left_out: Callable[[ReplayedDdl], bool]) -> None:
        """Run the stored DDL, if any. Raises ReplayFailed, ConnectionLost, Retry."""
        with statement_lock(self._session, self._lock, self._busy):
            text = self._state.ddl(self._session)
            if text is None:
                return
            stored = StoredDdl.parse(text)
            if is_left_out(stored.ddl):
                _log.warning("a DDL that was begun is left out", commit_ts=stored.ddl.commit_ts)
            else:
                self._run(stored)
            self._state.store_ddl(self._session, None)

    def _run(self, stored: StoredDdl) -> None:
        while stored.at < len(stored.ddl.statements):
            if stored.before is not None and self._has_run(stored):
                _log.warning("the DDL that a crash interrupted has run", statement=stored.statement)
                stored = stored.after_statement()
            else:
                step = partial(self._step, is_again=stored.before is not None)
                stored = run_marked(self._session, stored, self._mark, step)

    def _mark(self, stored: StoredDdl) -> None:
        self._state.store_ddl(self._session, stored.text())

    def _has_run(self, stored: StoredDdl) -> bool:
        found = has_run(self._session, stored, undoes_itself=undoes_itself(stored.statement, stored.ddl.use))
        if found is None:
            raise stored.ddl.failed(
                f"it was interrupted, and it is not known whether it has run; a second run would undo it. Run it if it "
                f"has not run, then {self._remedy(stored)}; the statement: {stored.statement}"
            )
        return found

    def _step(self, stored: StoredDdl, *, is_again: bool) -> StoredDdl:
        """Execute the statement. IGNORABLE errors count as success if an earlier attempt may have executed it."""
        try:
            if stored.ddl.use and not _is_of_database(stored.statement):
                self._session.execute(b"USE " + quote(stored.ddl.use))
            self._session.execute(stored.statement.encode())
        except ServerError as error:
            if error.code not in IGNORABLE or not (is_again or stored.ddl.may_exist):
                self._mark(replace(stored, before=None))
                raise stored.ddl.failed(
                    f"{error}; it is tried again at the next start, unless it is removed: {self._remedy(stored)}; the "
                    f"statement: {stored.statement}"
                ) from error
            _log.warning(
                "the server refused a DDL that may have run before, because its effect exists already; it counts as "
                "executed",
                commit_ts=stored.ddl.commit_ts,
                statement=stored.statement,
                error=str(error),
            )
        return stored.after_statement()

    def _remedy(self, stored: StoredDdl) -> str:
        return self._state.remedy(self._session, stored.ddl.commit_ts)


def _is_of_database(query: str) -> bool:
    """Return whether the statement is CREATE DATABASE or DROP DATABASE, which need no current database."""
    words = list(tokens(query))[:2]
    return len(words) == 2 and words[0].is_word("CREATE", "DROP") and words[1].is_word("DATABASE", "SCHEMA")


_T = TypeVar("_T")


def make(to: MySQLSection, settings: ReplaySettings) -> ServerReplayer:
    return ServerReplayer(to.server(SyncerSettings()), settings)


class ServerReplayer:
    """See replay.Replayer."""

    def __init__(self, config: ServerConfig, settings: ReplaySettings) -> None:
        self._config = config
        self._settings = settings
        self.name = config.address
        self._state = (ArbiterState if settings.is_arbiter else State)(config.address, settings)
        self._session: ServerSession | None = None
        self._rows = RowWriter(safe=settings.safe, zone=settings.zone)

    def open(self, is_left_out: Callable[[ReplayedDdl], bool] = never) -> str:
        position = self._tried("opening", self._state.open)
        self._run_ddl(is_left_out)
        return position

    def apply(self, transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None = None) -> None:
        def applied(session: ServerSession) -> None:
            if self._state.is_at(session, position):
                return  # it was committed, and the answer was lost
            with session.transaction("rows"):
                for one in transactions:
                    self._rows.write(session, one.commit_ts, one.events)
                self._state.move(session, position, None if ddl is None else StoredDdl(ddl).text())
                crash_point("replay.before_commit")
            crash_point("replay.after_commit")

        self._tried("applying rows", applied)
        self._state.moved(position)
        if ddl is not None:
            self._run_ddl(never)

    def snapshot(self, _: Identity) -> ServerSnapshot:
        """See snapshot.ReadsTables. Only for `kafka-consumer`, whose position is found by its name."""
        return ServerSnapshot(self._config, Identity(0, self._settings.name, ""), consumer_store)

    def _run_ddl(self, is_left_out: Callable[[ReplayedDdl], bool]) -> None:
        def run(session: ServerSession) -> None:
            self._rows.forget()
            DdlRun(session, self._state, self._settings).run(is_left_out)

        self._tried("running a DDL", run)

    def _tried(self, what: str, work: Callable[[ServerSession], _T]) -> _T:
        """`work`, again after a lost connection or a deadlock: it looks itself at what has been done already. Raises
        DestinationDown where the server stays away."""
        deadline = RetryDeadline(f"{self.name}: {what}", self._settings.wait_s)
        try:
            return deadline.repeat(lambda: work(self._opened()), (ConnectionLost, Retry), self._lost)
        except ServerError as error:
            raise DestinationRefused(f"{self.name}: {what}: {error}") from error

    def _opened(self) -> ServerSession:
        if self._session is None:
            self._session = connect(self._config, idle_s=_IDLE_S, read_timeout_s=None)
            self._session.execute(_DEFAULTS)
        return self._session

    def _lost(self, error: DestinationError) -> None:
        if isinstance(error, ConnectionLost):
            self.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
