"""Runs a statement exactly once (rule 18): a mark before, the statement, another mark after.

The mark has the definitions of the statement's tables (fingerprint.py). If they differ after a crash, the statement has
run. Running it again could, for example, make a second index with ADD INDEX without a name. Statements that leave the
same definitions, such as an exchange of two tables' names, are recognised by the storage engine's table ids, if this
user may read them. A statement runs under a lock of its connection (lock.py), so it has ended before a mark is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from binlog.runtime.crashpoint import crash_point

from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.ddl import fingerprint
from drainer.sink.mysql.ddl.fingerprint import Fingerprint, Name


class Statements(Protocol):
    """What is stored of a DDL: the databases and tables of its next statement, and their fingerprint before it, None if
    it was not begun."""

    @property
    def schemas(self) -> Sequence[str]: ...

    @property
    def tables(self) -> Sequence[Name]: ...

    @property
    def before(self) -> Fingerprint | None: ...

    def begun(self, before: Fingerprint) -> Self:
        """Return what is stored while the next statement runs."""
        ...


_S = TypeVar("_S", bound=Statements)


def run_marked(session: ServerSession, ddl: _S, mark: Callable[[_S], None], execute: Callable[[_S], _S]) -> _S:
    """Run the next statement. `mark`: stores the DDL, durably; `execute`: returns the DDL after the statement."""
    marked = ddl.begun(fingerprint.take(session, ddl.schemas, ddl.tables))
    crash_point("sink.ddl_before_mark")
    mark(marked)
    crash_point("sink.ddl_marked")
    after = execute(marked)
    crash_point("sink.ddl_after_exec")
    return after


def has_run(session: ServerSession, ddl: Statements, *, undoes_itself: bool) -> bool | None:
    """Return whether the next statement has run, which was begun. `undoes_itself`: a second run would undo the first
    one. None: it is not known, and the statement undoes itself. False may also mean that it is not known, and that a
    second run does no harm."""
    before = ddl.before
    if before is not None:
        now = fingerprint.take(session, ddl.schemas, ddl.tables)
        if now["shown"] != before["shown"]:
            return True
        if ddl.tables and now["ids"] is not None and before["ids"] is not None:
            return now["ids"] != before["ids"]
    return None if undoes_itself else False
