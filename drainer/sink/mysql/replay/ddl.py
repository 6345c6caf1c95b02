"""Runs the stored DDL of a replay exactly once, even if the program or the server dies in between.

The DDL is stored with the rows before it, run, and removed. `once.py` runs each of its statements. A DDL that the
server refused stays, without the mark: it has not run, so what is done to its tables from now on must not suggest that
it has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from binlog.runtime.log import get_logger

from drainer.ddl.lexer import tokens
from drainer.ddl.repetition import named_tables, undoes_itself
from drainer.sink.mysql.connection import ServerError, Session
from drainer.sink.mysql.ddl.fingerprint import Fingerprint, Name
from drainer.sink.mysql.ddl.once import has_run, run_marked
from drainer.sink.mysql.ddl.runner import IGNORABLE
from drainer.sink.mysql.lock import lock_name, statement_lock
from drainer.sink.mysql.replay.state import State
from drainer.sink.mysql.rows.statements import quote
from drainer.sink.replay import ReplayedDdl, ReplaySettings

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredDdl:
    """A stored DDL. See once.Statements. `at`: the index of its next statement."""

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
        found = json.loads(text)
        ddl = ReplayedDdl(**{**found["ddl"], "statements": tuple(found["ddl"]["statements"])})
        return cls(ddl, found["at"], found["before"])


class DdlRun:
    """Runs the stored DDL in one session."""

    def __init__(self, session: Session, state: State, settings: ReplaySettings) -> None:
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
