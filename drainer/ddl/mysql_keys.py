"""SQL of indexes, foreign keys and CHECK constraints for MySQL and MariaDB. Pure."""

from __future__ import annotations

from typing import Final

from binlog.tidb.index import IndexInfo
from binlog.tidb.table import TableInfo

from drainer.ddl.constraints import Check, ForeignKey
from drainer.ddl.dialect import Dialect
from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import literal

# Name of the unique key that replaces a primary key on a generated column where the server does not support it.
GENERATED_PRIMARY: Final = "pk_generated"


def index_sql(info: TableInfo, index: IndexInfo, dialect: Dialect) -> str:
    """`UNIQUE KEY name (parts)`, '' for an expression index that the server does not support."""
    parts = []
    for part in index.columns:
        column = info.columns[part.offset]
        if column.hidden:
            if dialect.bare or not dialect.expression_indexes:
                return ""
            parts.append(f"({column.generated_expr})")
            continue
        whole = part.length < 0 or part.length == column.type.flen
        parts.append(quoted(column.name) + ("" if whole else f"({part.length})"))
    body = f"({', '.join(parts)})"
    if index.invisible and not dialect.bare:
        body += f" {dialect.invisible}"
    if index.comment:
        body += " COMMENT " + literal(index.comment)
    if is_primary_key(info, index, dialect):
        return "PRIMARY KEY " + body
    unique = "UNIQUE " * (index.unique or index.primary)
    return f"{unique}KEY {quoted(GENERATED_PRIMARY if index.primary else index.name)} {body}"


def is_primary_key(info: TableInfo, index: IndexInfo, dialect: Dialect) -> bool:
    """Whether the index is created as the primary key on the server."""
    generated = any(info.columns[part.offset].is_generated for part in index.columns)
    return index.primary and (dialect.generated_keys or not generated)


def drop_index_sql(info: TableInfo, index: IndexInfo, dialect: Dialect) -> str:
    """`DROP INDEX name` of an index of `info`, '' where the server does not have it."""
    if is_primary_key(info, index, dialect):
        return "DROP PRIMARY KEY"
    if not index_sql(info, index, dialect):
        return ""
    name = GENERATED_PRIMARY if index.primary else index.name
    return f"DROP INDEX {_if_exists(dialect)}{quoted(name)}"


def foreign_key_sql(schema: str, table_id: int, key: ForeignKey) -> str:
    """`CONSTRAINT name FOREIGN KEY …` of a table in `schema`."""
    text = (
        f"CONSTRAINT {quoted(foreign_key_name(key, table_id))} FOREIGN KEY ({', '.join(map(quoted, key.columns))}) "
        f"REFERENCES {quoted(key.parent_schema or schema, key.parent)} ({', '.join(map(quoted, key.parent_columns))})"
    )
    for event, action in (("DELETE", key.on_delete), ("UPDATE", key.on_update)):
        text += f" ON {event} {action}" if action else ""
    return text


def foreign_key_name(key: ForeignKey, table_id: int) -> str:
    """The key's name; one that TiDB generated gets the table's id appended, to be unique in the database."""
    return f"{key.name}_{table_id}" if key.is_name_generated else key.name


def drop_foreign_key_sql(table_id: int, key: ForeignKey, dialect: Dialect) -> list[str]:
    """DROP clauses; a key with a generated name may exist under either name."""
    names = [foreign_key_name(key, table_id)]
    if dialect.if_exists and key.is_name_generated:
        names.insert(0, key.name)
    return [f"DROP FOREIGN KEY {_if_exists(dialect)}{quoted(name)}" for name in names]


def check_sql(check: Check, dialect: Dialect) -> str:
    """`CONSTRAINT name CHECK (…)`, '' for an unenforced one where the server does not support NOT ENFORCED."""
    if not check.enforced and not dialect.unenforced_checks:
        return ""
    return f"CONSTRAINT {quoted(check.name)} CHECK ({check.expression})" + " NOT ENFORCED" * (not check.enforced)


def drop_check_sql(check: Check, dialect: Dialect) -> str:
    return (
        f"DROP CONSTRAINT IF EXISTS {quoted(check.name)}" if dialect.if_exists else f"DROP CHECK {quoted(check.name)}"
    )


def _if_exists(dialect: Dialect) -> str:
    return "IF EXISTS " if dialect.if_exists else ""
