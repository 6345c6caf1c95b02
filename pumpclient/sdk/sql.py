"""DDL text in the form in which TiDB restores it (X-04): upper-case keywords, back-quoted names, a `;` at the end.
Pure.

TiDB's own features are written as comments that MySQL ignores. Names include their database only where the statement
needs it.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlog.tidb.types import FLOATS, INTEGERS, FieldType, Tp

from pumpclient.sdk.table import Column, Index, Table
from pumpclient.sdk.values import default_info, quoted

CLUSTERED = "/*T![clustered_index] CLUSTERED */"
NONCLUSTERED = "/*T![clustered_index] NONCLUSTERED */"
DEFAULT_COLLATIONS = {"utf8mb4": "utf8mb4_bin", "utf8": "utf8_bin", "ascii": "ascii_bin", "binary": "binary"}


def name(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"


def type_sql(kind: FieldType) -> str:
    """Return the SQL text of a type, with UNSIGNED, CHARACTER SET and COLLATE where they are not the default."""
    text = _base(kind)
    if kind.tp is not Tp.BIT and kind.tp is not Tp.YEAR and kind.is_unsigned:
        text += " UNSIGNED"
    if kind.charset != "binary":
        if kind.charset != "utf8mb4":
            text += f" CHARACTER SET {kind.charset.upper()}"
        if kind.collate != DEFAULT_COLLATIONS.get(kind.charset):
            text += f" COLLATE {kind.collate}"
    return text


def _base(kind: FieldType) -> str:
    text = kind.mysql_name.upper()
    if kind.tp is Tp.NEWDECIMAL or (kind.tp in FLOATS and kind.decimal >= 0):
        return f"{text}({kind.flen},{kind.decimal})"
    if kind.tp in (Tp.ENUM, Tp.SET):
        return f"{text}({','.join(quoted(name) for name in kind.elems)})"
    if kind.tp in (Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION):
        return f"{text}({kind.fsp})" if kind.fsp else text
    if kind.tp in (Tp.STRING, Tp.VARCHAR, Tp.BIT) or (kind.tp is Tp.TINY and kind.flen == 1):
        return f"{text}({kind.flen})"
    return text


def column_sql(table: str, column: Column, *, inline_key: str = "") -> str:
    """Return one column's definition. `inline_key`: the text that makes this column alone the primary key."""
    parts = [name(column.name), type_sql(column.type)]
    default = default_info(table, column)
    if not column.is_nullable and not column.primary_key:
        parts.append("NOT NULL")
    elif column.type.tp is Tp.TIMESTAMP and column.is_nullable:
        parts.append("NULL")  # without it, older MySQL and MariaDB make a TIMESTAMP NOT NULL
    if default.sql is not None:
        parts.append(f"DEFAULT {default.sql}")
    if inline_key:
        parts.append(inline_key)
    if column.comment:
        parts.append(f"COMMENT {quoted(column.comment)}")
    return " ".join(parts)


def _parts(key: Index) -> str:
    return ", ".join(name(column) + (f"({length})" if length > 0 else "") for column, length in key.columns)


def key_sql(key: Index) -> str:
    return f"{'UNIQUE' if key.unique else 'INDEX'} {name(key.name)}({_parts(key)})"


def create_table(table: Table) -> str:
    single = table.primary_key.columns[0] if len(table.primary_key.columns) == 1 else None
    inline = single is not None and single[1] == -1 and table.clustered
    lines: list[str] = []
    for column in table.columns:
        key = ""
        if inline and column.primary_key:
            key = "PRIMARY KEY" if column.type.tp in INTEGERS - {Tp.YEAR} else f"PRIMARY KEY {CLUSTERED}"
        lines.append(column_sql(table.name, column, inline_key=key))
    if table.primary_key.columns and not inline:
        lines.append(f"PRIMARY KEY({_parts(table.primary_key)}) {CLUSTERED if table.clustered else NONCLUSTERED}")
    lines += [key_sql(key) for key in table.keys]
    text = f"CREATE TABLE {name(table.name)} ({','.join(lines)})"
    if table.collate != "utf8mb4_bin":
        charset = table.collate.split("_", 1)[0]
        text += f" DEFAULT CHARACTER SET = {charset.upper()} DEFAULT COLLATE = {table.collate.upper()}"
    if table.comment:
        text += f" COMMENT = {quoted(table.comment)}"
    return text + ";"


def create_database(database: str, collate: str) -> str:
    text = f"CREATE DATABASE {name(database)}"
    if collate != "utf8mb4_bin":
        text += f" CHARACTER SET = {collate.split('_', 1)[0]} COLLATE = {collate}"
    return text + ";"


def rename_table(old: str, new: str, *, old_schema: str, new_schema: str) -> str:
    if old_schema == new_schema:
        return f"RENAME TABLE {name(old)} TO {name(new)};"
    return f"RENAME TABLE {name(old_schema)}.{name(old)} TO {name(new_schema)}.{name(new)};"


def alter_table(table: str, changes: Iterable[str]) -> str:
    return f"ALTER TABLE {name(table)} {', '.join(changes)};"
