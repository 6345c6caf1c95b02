"""Run the DDL that a server destination has stored, exactly once, even if the consumer or the server dies in between.

The DDL is stored with the rows before it, run, and removed. Before each of its statements, the definitions of the
tables that the statement names are recorded; they show after a crash whether it has run
(drainer/sink/mysql/ddl/interrupted.py). Errors such as "table exists" (D-LD-14) count as success when a statement runs
again. A statement runs under a lock of its connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.ddl.lexer import statements, tokens
from drainer.ddl.repetition import named_tables
from drainer.kafka_consumer.core import ConsumeError
from drainer.protocol.event import DdlEvent
from drainer.sink.mysql.connection import ServerError, Session
from drainer.sink.mysql.ddl import fingerprint
from drainer.sink.mysql.ddl.fingerprint import Fingerprint
from drainer.sink.mysql.ddl.interrupted import has_run, statement_lock
from drainer.sink.mysql.ddl.runner import execute_text

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredDdl:
    """A stored DDL. `statement`: the index of its next statement; `before`: the definitions of that statement's tables
    before it, None: it was not begun; `is_noted`: False for a DDL that was stored by a version that recorded no
    definitions."""

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
    """Return the name of a consumer's lock; servers limit such names to 64 characters."""
    return "kafka_consumer." + sha256(name.encode()).hexdigest()[:32]


class DdlRun:
    """Run a stored DDL. `store`: replaces the stored text, None removes it; `way_out`: the statement with which an
    operator can remove it."""

    def __init__(self, session: Session, name: str, store: Callable[[str | None], None], way_out: str) -> None:
        self._session = session
        self._lock = lock_name(name)
        self._store = store
        self._way_out = way_out

    def run(self, load: Callable[[], str | None], *, repeated: bool) -> None:
        """Run the DDL that `load` returns, if any. `repeated`: it may have run before. Raises ConsumeError,
        ConnectionLost, Retry."""
        with statement_lock(self._session, self._lock, "a DDL of a consumer of this name is still running"):
            text = load()
            if text is not None:
                self._run(StoredDdl.parse(text), repeated=repeated)

    def _run(self, ddl: StoredDdl, *, repeated: bool) -> None:
        every = list(statements(ddl.query))
        while ddl.statement < len(every):
            statement = every[ddl.statement]
            if _is_of_temporary_table(statement):
                ddl = replace(ddl, statement=ddl.statement + 1, before=None)
                continue
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
        found = has_run(self._session, ddl.schema, statement, tables, ddl.before)
        if found is None:
            raise ConsumeError(
                f"the DDL at commit_ts {ddl.commit_ts} was interrupted, and it is not known whether it has run; a "
                f"second run would undo it. Run it if it has not run, then {self._way_out}; the statement: {statement}"
            )
        return found

    def _execute(self, ddl: StoredDdl, statement: str, *, again: bool) -> None:
        schema = "" if _is_of_database(statement) else ddl.schema
        try:
            execute_text(self._session, schema, statement, commit_ts=ddl.commit_ts, may_have_run=again)
        except ServerError as error:
            # It has not run: what is done to its tables from now on must not suggest that it has.
            self._store(replace(ddl, before=None).text())
            raise ConsumeError(
                f"the DDL at commit_ts {ddl.commit_ts}: {error}; it is tried again at the next start, unless it is "
                f"removed: {self._way_out}; the statement: {statement}"
            ) from error


def _is_of_temporary_table(query: str) -> bool:
    """Return whether the statement creates or drops a GLOBAL TEMPORARY table, which only TiDB has. It has no rows in
    topics."""
    words = list(tokens(query))[:3]
    return len(words) == 3 and words[0].is_word("CREATE", "DROP") and words[1].is_word("GLOBAL")


def _is_of_database(query: str) -> bool:
    """Return whether the statement is CREATE DATABASE or DROP DATABASE, which need no current database."""
    words = list(tokens(query))[:2]
    return len(words) == 2 and words[0].is_word("CREATE", "DROP") and words[1].is_word("DATABASE", "SCHEMA")
