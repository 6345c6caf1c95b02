"""Shows whether a DDL has run, by the definitions of the destination's tables and an id that belongs to their data.

After a cyclic RENAME or an EXCHANGE PARTITION all tables have the same definitions as before (rule 18: an interrupted
DDL runs once). The storage engine's table id moves with the data, so it shows whether the statement ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypedDict

from drainer.sink.mysql.connection import ServerError, ServerSession
from drainer.sink.mysql.rows.statements import qualified, quote

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
