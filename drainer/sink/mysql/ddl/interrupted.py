"""Find out whether a DDL's text has run before an interruption, for programs that run upstream's text of DDLs.

Before a statement, the caller stores the definitions of the tables that it names (fingerprint.py). If the tables have
other definitions after a crash, the statement has run. Running it again could, for example, make a second index with
ADD INDEX without a name. Statements that leave the same definitions, such as an exchange of two tables' names, are
recognised by the storage engine's table ids, if this user may read them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from drainer.ddl.repetition import undoes_itself
from drainer.sink.errors import DestinationError
from drainer.sink.mysql.connection import Retry, Session
from drainer.sink.mysql.ddl import fingerprint
from drainer.sink.mysql.ddl.fingerprint import Fingerprint, Name

LOCK_WAIT_S: Final = 5


@contextlib.contextmanager
def statement_lock(session: Session, name: str, busy: str) -> Iterator[None]:
    """Hold a lock of the session's connection while a DDL runs. So the statement of a process that was killed has ended
    before the next process checks whether it has run. `name`: at most 64 characters. Raises Retry with the text `busy`
    if another connection keeps the lock."""
    quoted = session.literal(name)
    ((held,),) = session.query(b"SELECT GET_LOCK(%b,%d)" % (quoted, LOCK_WAIT_S))
    if held != 1:
        raise Retry(busy)
    try:
        yield
    finally:
        with contextlib.suppress(DestinationError):  # a lost connection has released the lock
            session.query(b"SELECT RELEASE_LOCK(" + quoted + b")")


def has_run(
    session: Session, schema: str, statement: str, tables: Sequence[Name], before: Fingerprint | None
) -> bool | None:
    """Return whether a statement that was begun has run. `schema`: the database of tables that are named without one;
    `tables`: those of repetition.named_tables; `before`: their fingerprint before the statement, None if it was not
    stored. None: it is not known, and a second run would undo the first one. False may also mean that it is not known,
    and that a second run does no harm."""
    if before is not None:
        now = fingerprint.take(session, (), tables)
        if now["shown"] != before["shown"]:
            return True
        if tables and now["ids"] is not None and before["ids"] is not None:
            return now["ids"] != before["ids"]
    return None if undoes_itself(statement, schema) else False
