"""Runs the DDL that a server destination has stored, once, whatever dies in between.

It is stored with the rows before it, run, and taken away. Before each of its statements it is noted how the tables that
the statement names look (drainer/sink/mysql/ddl/fingerprint.py). After a crash tables that look otherwise say that it
has run: a second ADD INDEX without a name would make a second index. What looks the same on both sides of a statement,
such as tables that exchange their names, is told by the ids of the storage engine, where this user may read them.
Errors such as "table exists" (D-LD-14) are taken for done when a statement runs again.

A statement runs under a lock of the connection's, so that one of a consumer that was killed has ended when it is looked
whether it ran.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.ddl.lexer import statements, tokens
from drainer.kafka_consumer.core import ConsumeError
from drainer.kafka_consumer.repetition import named_tables, undoes_itself
from drainer.protocol.event import DdlEvent
from drainer.sink.errors import DestinationError
from drainer.sink.mysql.connection import Retry, ServerError, Session
from drainer.sink.mysql.ddl import fingerprint
from drainer.sink.mysql.ddl.fingerprint import Fingerprint
from drainer.sink.mysql.ddl.runner import IGNORABLE
from drainer.sink.mysql.rows.statements import quote

_LOCK_WAIT_S: Final = 5

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredDdl:
    """`statement`: which of them is next; `before`: how its tables looked, None: it was not begun; `is_noted`: False
    for one of a version that noted nothing of this."""

    commit_ts: int
    schema: str
    query: str
    table: str = ""
    statement: int = 0
    before: Fingerprint | None = None
    is_noted: bool = True

    def text(self) -> str:
        return json.dumps({key: value for key, value in asdict(self).items() if key != "is_noted"})

    @classmethod
    def of(cls, event: DdlEvent) -> StoredDdl:
        return cls(event.commit_ts, event.schema, event.query, event.table)

    @classmethod
    def parse(cls, text: str) -> StoredDdl:
        found: Any = json.loads(text)
        if isinstance(found, list):
            commit_ts, schema, query = found
            return cls(commit_ts, schema, query, is_noted=False)
        return cls(**found)


def lock_name(name: str) -> str:
    """Of a consumer's lock: servers have a limit of 64 characters."""
    return "kafka_consumer." + sha256(name.encode()).hexdigest()[:32]


class DdlRun:
    """`store` keeps a text in the place of the stored one, None: none; `way_out`: the statement that takes it away,
    for who is to do that by hand."""

    def __init__(self, session: Session, name: str, store: Callable[[str | None], None], way_out: str) -> None:
        self._session = session
        self._lock = lock_name(name)
        self._store = store
        self._way_out = way_out

    def run(self, load: Callable[[], str | None], *, repeated: bool) -> None:
        """`load` gives what is stored. `repeated`: it may have run. Raises ConsumeError, ConnectionLost, Retry."""
        self._hold()
        try:
            text = load()
            if text is not None:
                self._run(StoredDdl.parse(text), repeated=repeated)
        finally:
            with contextlib.suppress(DestinationError):  # a connection that is gone has given it back
                self._session.query(b"SELECT RELEASE_LOCK(" + self._session.literal(self._lock) + b")")

    def _hold(self) -> None:
        name = self._session.literal(self._lock)
        ((held,),) = self._session.query(b"SELECT GET_LOCK(%b,%d)" % (name, _LOCK_WAIT_S))
        if held != 1:
            raise Retry("a DDL of a consumer of this name is still running")

    def _run(self, ddl: StoredDdl, *, repeated: bool) -> None:
        every = list(statements(ddl.query))
        while ddl.statement < len(every):
            statement = every[ddl.statement]
            tables = named_tables(statement, ddl.schema, ddl.table)
            begun = ddl.before is not None or (repeated and not ddl.is_noted)
            if begun and self._has_run(ddl, statement, tables):
                _log.warning("the DDL that a crash interrupted has run", statement=statement)
            else:
                crash_point("consumer.before_ddl")
                ddl = replace(ddl, before=fingerprint.take(self._session, (), tables), is_noted=True)
                self._store(ddl.text())
                crash_point("consumer.ddl_noted")
                self._execute(ddl, statement, again=begun)
                crash_point("consumer.after_ddl")
            ddl = replace(ddl, statement=ddl.statement + 1, before=None)
        self._store(None)

    def _has_run(self, ddl: StoredDdl, statement: str, tables: list[fingerprint.Name]) -> bool:
        before = ddl.before
        if before is not None:
            now = fingerprint.take(self._session, (), tables)
            if now["shown"] != before["shown"]:
                return True
            if tables and now["ids"] is not None and before["ids"] is not None:
                return now["ids"] != before["ids"]
        if undoes_itself(statement, ddl.schema):
            raise ConsumeError(
                f"the DDL at commit_ts {ddl.commit_ts} was interrupted, and may have run or not; twice it would take "
                f"itself back. Run it if it has not, then {self._way_out}; the statement: {statement}"
            )
        return False

    def _execute(self, ddl: StoredDdl, statement: str, *, again: bool) -> None:
        try:
            if ddl.schema and not _is_of_database(statement):
                self._session.execute(b"USE " + quote(ddl.schema))
            self._session.execute(statement.encode())
        except ServerError as error:
            if error.code not in IGNORABLE or not again:
                self._store(replace(ddl, before=None).text())  # it has not run, whatever is done to its tables now
                raise ConsumeError(
                    f"the DDL at commit_ts {ddl.commit_ts}: {error}; it is tried again at the next start, unless it is "
                    f"taken away: {self._way_out}; the statement: {statement}"
                ) from error
            _log.warning(
                "the server refused a DDL that may have run before an interruption, for what it does is done already; "
                "it counts as executed",
                commit_ts=ddl.commit_ts,
                statement=statement,
                error=str(error),
            )


def _is_of_database(query: str) -> bool:
    """CREATE DATABASE and DROP DATABASE, which run in none."""
    words = list(tokens(query))[:2]
    return len(words) == 2 and words[0].is_word("CREATE", "DROP") and words[1].is_word("DATABASE", "SCHEMA")
