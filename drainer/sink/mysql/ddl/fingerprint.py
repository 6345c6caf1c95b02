"""Runs a DDL exactly once: shows whether it has run, by the definitions of the destination's tables and an id that
belongs to their data.

After a cyclic RENAME or an EXCHANGE PARTITION all tables have the same definitions as before (rule 18: an interrupted
DDL runs once). The storage engine's table id moves with the data, so it shows whether the statement ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self, TypedDict, TypeVar

from binlog.runtime.crashpoint import crash_point

from drainer.sink.mysql.connection import ServerError, ServerSession
from drainer.sink.mysql.rows.format import qualified, quote

_ACCESS_DENIED: Final = frozenset({1044, 1142, 1227})

_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")

Name = tuple[str, str]


class Fingerprint(TypedDict):
    """`shown`: name → SHOW CREATE text, "" if it does not exist. `ids`: storage name → id, None if this user lacks the
    privilege to read them. JSON-serializable."""

    shown: dict[str, str]
    ids: dict[str, int] | None


def take(session: ServerSession, schemas: Sequence[str], tables: Sequence[Name]) -> Fingerprint:
    """Read the fingerprint of these databases and tables."""
    shown = {f"{schema}.": _show(session, b"DATABASE " + quote(schema)) for schema in schemas}
    for schema, table in tables:
        shown[f"{schema}.{table}"] = _show(session, b"TABLE " + qualified(schema, table))
    return Fingerprint(shown=shown, ids=_ids(session, tables))


def _show(session: ServerSession, what: bytes) -> str:
    try:
        # Counters move without a DDL, some servers forget them, and setting one again does no harm.
        return _COUNTER.sub("", session.show_create(what))
    except ServerError as error:
        if error.code in _ACCESS_DENIED:
            raise
        return ""


def _ids(session: ServerSession, tables: Sequence[Name]) -> dict[str, int] | None:
    if not tables:
        return {}
    try:
        if session.flavour == "tidb":
            return _tidb_ids(session, tables)
        return _innodb_ids(session, tables)
    except ServerError as error:
        if error.code in _ACCESS_DENIED or error.code == 1109:  # 1109: no such information_schema table
            return None
        raise


def _innodb_ids(session: ServerSession, tables: Sequence[Name]) -> dict[str, int]:
    source = b"INNODB_SYS_TABLES" if session.flavour == "mariadb" else b"INNODB_TABLES"
    tests = []
    for schema, table in tables:
        # InnoDB's names are spelled in the server's own "filename" character set; partitions follow "#P#".
        path = (
            b"LOWER(CONCAT(CAST(CONVERT(%s USING filename) AS BINARY),'/',CAST(CONVERT(%s USING filename) AS BINARY)))"
        )
        path = b"CONVERT(" + path % (session.literal(schema), session.literal(table)) + b" USING utf8mb4)"
        tests.append(b"LOWER(NAME)=%s OR INSTR(LOWER(NAME),CONCAT(%s,'#p#'))=1" % (path, path))
    rows = session.query(b"SELECT NAME, TABLE_ID FROM information_schema." + source + b" WHERE " + b" OR ".join(tests))
    return {str(name): int(table_id or 0) for name, table_id in rows}


def _tidb_ids(session: ServerSession, tables: Sequence[Name]) -> dict[str, int]:
    names = b",".join(b"(%s,%s)" % (session.literal(s), session.literal(t)) for s, t in tables)
    own = session.query(
        b"SELECT CONCAT(TABLE_SCHEMA,'/',TABLE_NAME), TIDB_TABLE_ID FROM information_schema.TABLES"
        b" WHERE (TABLE_SCHEMA,TABLE_NAME) IN (" + names + b")"
    )
    parts = session.query(
        b"SELECT CONCAT(TABLE_SCHEMA,'/',TABLE_NAME,'#p#',PARTITION_NAME), TIDB_PARTITION_ID"
        b" FROM information_schema.PARTITIONS WHERE PARTITION_NAME IS NOT NULL"
        b" AND (TABLE_SCHEMA,TABLE_NAME) IN (" + names + b")"
    )
    return {str(name): int(table_id or 0) for name, table_id in (*own, *parts)}


# Runs a statement exactly once (rule 18): a mark before, the statement, another mark after.
#
# The mark has the definitions of the statement's tables (Fingerprint). If they differ after a crash, the statement has
# run. Running it again could, for example, make a second index with ADD INDEX without a name. Statements that leave the
# same definitions, such as an exchange of two tables' names, are recognised by the storage engine's table ids, if this
# user may read them. A statement runs under a lock of its connection (fenced_session.py), so it has ended before a mark
# is read.


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
    marked = ddl.begun(take(session, ddl.schemas, ddl.tables))
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
        now = take(session, ddl.schemas, ddl.tables)
        if now["shown"] != before["shown"]:
            return True
        if ddl.tables and now["ids"] is not None and before["ids"] is not None:
            return now["ids"] != before["ids"]
    return None if undoes_itself else False
