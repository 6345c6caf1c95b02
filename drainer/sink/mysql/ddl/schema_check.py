"""What a MySQL, MariaDB or TiDB shows of a table and of the one that is wanted (drainer.sink.snapshot)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from binlog.tidb.table import TableInfo

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import Dialect, UnsupportedType, column_sql
from drainer.ddl.mysql_tables import create_table, index_sql
from drainer.ddl.table_diff import all_indexes, is_counted, shown_columns
from drainer.schema.view import TableVersions
from drainer.sink.mysql.connection import ServerError, ServerSession
from drainer.sink.mysql.ddl.runner import known_collations
from drainer.sink.mysql.ddl.session_context import Server
from drainer.sink.snapshot import Definition, Found, SchemaDifference, differences, of_each

_WANTED: Final = "drainer_check_wanted"
_NO_DATABASE, _NO_TABLE = 1049, 1146
# MySQL adds this invisible column to a table without a primary key, if sql_generate_invisible_primary_key is on.
_OWN_KEY: Final = "my_row_id"
_WIDTH: Final = re.compile(r"(int|year)\(\d+\)(?!.*zerofill)")
_NO_TEXT: Final = re.compile(r"(?:\\x[0-9a-f]{2}|\ufffd)+")  # a server may show such bytes as ?, and TiDB store U+FFFD
_GENERATED: Final = re.compile(r"^  (`.+?`) .* GENERATED ALWAYS AS (\(.*\)) (?:VIRTUAL|STORED)", re.MULTILINE)


def server_differences(session: ServerSession, tables: Iterable[TableVersions]) -> Iterator[SchemaDifference]:
    """Compare the definitions of a view's tables with the server's. Not in a transaction, because temporary tables are
    created. A table that cannot be compared is reported as a difference."""
    dialect = Server(session.flavour, known_collations(session)).dialect()
    return of_each(tables, lambda table: _on_server(session, table, dialect))


def _on_server(session: ServerSession, table: TableVersions, dialect: Dialect) -> Found:
    schema, info, name = table.schema, table.current, quoted(table.schema, table.name)
    try:
        there = _shown(session, name, info)
        wanted = _created(session, schema, info, dialect)
    except (ServerError, UnsupportedType) as error:
        if isinstance(error, ServerError) and error.code in (_NO_DATABASE, _NO_TABLE):
            database = f"CREATE DATABASE IF NOT EXISTS {quoted(schema)}"
            yield "no such table", f"{database}; {create_table(schema, info, dialect)}"
        else:
            yield f"not compared (this needs SELECT and CREATE TEMPORARY TABLES): {error}", ""
        return
    columns = {one.name.lower(): one for one in shown_columns(info)}
    indexes = {one.name.lower(): one for one in all_indexes(info)}
    has_keys = all(there.get(key) == text for key, text in wanted.items() if key[0] == "index")
    for what, kind, one, found, asked in differences(table, there, wanted):
        if kind == "column" and asked is not None:
            definition = column_sql(columns[one], dialect, counted=has_keys and is_counted(info, columns[one]))
            clause = f"{'MODIFY' if found else 'ADD'} COLUMN {definition}"
        else:
            drop = "DROP PRIMARY KEY" if (kind, one) == ("index", "primary") else f"DROP {kind.upper()} {quoted(one)}"
            # The primary key may have another name there.
            add = asked and f"ADD {index_sql(info, indexes.get(one) or indexes['primary'], dialect)}"
            clause = ", ".join(filter(None, (found and drop, add)))
        yield what, f"ALTER TABLE {name} {clause}"


def _created(session: ServerSession, schema: str, info: TableInfo, dialect: Dialect) -> Definition:
    """What the server shows of a table that is created from the TableInfo, with only what rows depend on."""
    plain, name = replace(info, name=_WANTED, partition=None), quoted(schema, _WANTED)
    text = create_table(schema, plain, dialect.only_rows())
    session.execute(text.replace("CREATE", "CREATE TEMPORARY", 1).encode())
    try:
        return _shown(session, name, info)
    finally:
        session.execute(f"DROP TEMPORARY TABLE {name}".encode())


def _shown(session: ServerSession, name: str, info: TableInfo) -> Definition:
    table, found = name.encode(), Definition()
    computed = {one.name.lower() for one in info.columns if one.default_is_expr}
    expressions = dict(_GENERATED.findall(session.show_create(b"TABLE " + table)))
    for column, kind, collation, null, _, default, extra, _, comment in session.show(b"FULL COLUMNS FROM " + table):
        if column != _OWN_KEY or "INVISIBLE" not in str(extra):
            key = str(column).lower()
            words = (
                _WIDTH.sub(r"\1", str(kind)),
                collation and f"COLLATE {collation}",
                null == "NO" and "NOT NULL",
                default is not None and key not in computed and f"DEFAULT {_NO_TEXT.sub('?', default)!r}",
                str(extra).replace("DEFAULT_GENERATED", "").strip(),
                expressions.get(quoted(str(column))),
                comment and f"COMMENT {comment!r}",
            )
            found["column", key] = " ".join(str(word) for word in words if word)
    parts: dict[tuple[str, str], list[str]] = {}
    for row in session.show(b"INDEX FROM " + table):
        part = (row[4] or _OWN_KEY).lower() + (f"({row[7]})" if row[7] else "")  # no column: an expression
        parts.setdefault((str(row[2]).lower(), "UNIQUE" if row[1] == "0" else "KEY"), []).append(part)
    found |= {("index", key): f"{kind} ({', '.join(of)})" for (key, kind), of in parts.items() if _OWN_KEY not in of}
    return found
