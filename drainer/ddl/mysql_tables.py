"""CREATE TABLE and ALTER TABLE for MySQL and MariaDB, from TableInfos. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import Dialect, column_sql, default_sql, literal
from drainer.ddl.mysql_objects import partitioning_sql
from drainer.ddl.table_diff import (
    Check,
    ColumnChange,
    ForeignKey,
    TableDiff,
    all_indexes,
    checks,
    foreign_keys,
    has_no_default,
    is_counted,
    same_default,
    same_definition,
    same_type,
    shown_columns,
)

# SQL of indexes, foreign keys and CHECK constraints for MySQL and MariaDB. Pure.
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


def _if_exists(dialect: Dialect) -> str:
    return "IF EXISTS " if dialect.if_exists else ""


def create_table(schema: str, info: TableInfo, dialect: Dialect) -> str:
    """CREATE TABLE with everything the server supports. Raises UnsupportedType."""
    items = [_column(info, column, dialect) for column in shown_columns(info)]
    items += [text for index in all_indexes(info) if (text := index_sql(info, index, dialect))]
    if not dialect.bare:
        items += [foreign_key_sql(schema, info.id, key) for key in foreign_keys(info)]
        items += [text for check in checks(info) if (text := check_sql(check, dialect))]
    text = f"CREATE TABLE {quoted(schema, info.name)} ({', '.join(items)})"
    counts = any(is_counted(info, column) for column in shown_columns(info))
    options = [_charset(info, dialect), _auto_increment(info.auto_inc_id if counts else 0)]
    options += [f"COMMENT = {literal(info.comment)}" if info.comment else "", partitioning_sql(info.partition)]
    return " ".join([text, *filter(None, options)])


def alter_table(schema: str, before: TableInfo, after: TableInfo, diff: TableDiff, dialect: Dialect) -> list[str]:
    """The statements that change `before` to `after`: at most one for the table, and one per partition change; none if
    nothing changes. Raises UnsupportedType."""
    head = f"ALTER TABLE {quoted(schema, after.name)} "
    clauses = [*_dropped(before, diff, dialect), *_columns(before, after, diff, dialect)]
    clauses += [*_indexes(after, diff, dialect), *_constraints(schema, after, diff, dialect)]
    clauses += _options(after, diff, dialect)
    statements = [head + ", ".join(clauses)] if clauses else []
    return statements + [head + clause for clause in diff.partitions]


def foreign_key_statements(schema: str, info: TableInfo) -> list[str]:
    """ALTER TABLE … ADD CONSTRAINT for each of the table's foreign keys."""
    head = f"ALTER TABLE {quoted(schema, info.name)} ADD "
    return [head + foreign_key_sql(schema, info.id, key) for key in foreign_keys(info)]


def _dropped(before: TableInfo, diff: TableDiff, dialect: Dialect) -> Iterator[str]:
    if not dialect.bare or dialect.if_exists:
        for key in diff.dropped_foreign_keys:
            yield from drop_foreign_key_sql(before.id, key, dialect)
        for check in diff.dropped_checks:
            yield f"DROP {'CONSTRAINT IF EXISTS' if dialect.if_exists else 'CHECK'} {quoted(check.name)}"
    for index in diff.dropped_indexes:
        text = drop_index_sql(before, index, dialect)
        if text:
            yield text
    for column in diff.dropped_columns:
        yield f"DROP COLUMN {quoted(column.name)}"


def _columns(before: TableInfo, after: TableInfo, diff: TableDiff, dialect: Dialect) -> Iterator[str]:
    for change in diff.columns:
        clause = ""
        if change.position is not None:
            clause = f" AFTER {quoted(change.position)}" if change.position else " FIRST"
        if change.was is None:
            yield f"ADD COLUMN {_column(after, change.now, dialect)}{clause}"
        else:
            yield _short(before, after, change, dialect) or (
                f"CHANGE COLUMN {quoted(change.was.name)} {_column(after, change.now, dialect)}{clause}"
            )


def _short(before: TableInfo, after: TableInfo, change: ColumnChange, dialect: Dialect) -> str:
    """A clause that leaves the rest of the definition as it is in the destination; '' if the whole definition is
    needed."""
    was, now = change.was, change.now
    if dialect.bare or was is None or change.position is not None or is_counted(before, was) != is_counted(after, now):
        return ""
    if was.name != now.name:
        return f"RENAME COLUMN {quoted(was.name)} TO {quoted(now.name)}" if same_definition(was, now) else ""
    alike = same_type(was.type, now.type) and (was.comment, was.generated_expr, was.generated_stored) == (
        now.comment, now.generated_expr, now.generated_stored,
    )  # fmt: skip
    if not alike or same_default(was, now):
        return ""
    default = default_sql(now, dialect) or ("" if has_no_default(now) else "NULL")
    if default.upper().startswith("CURRENT_TIMESTAMP"):  # MySQL accepts it only in a definition
        return ""
    return f"ALTER COLUMN {quoted(now.name)} " + (f"SET DEFAULT {default}" if default else "DROP DEFAULT")


def _indexes(after: TableInfo, diff: TableDiff, dialect: Dialect) -> Iterator[str]:
    for was, now in diff.renamed_indexes:
        text = index_sql(after, now, dialect)
        if text and dialect.bare:
            yield from (f"DROP INDEX {quoted(was.name)}", f"ADD {text}")
        elif text:
            yield f"RENAME INDEX {quoted(was.name)} TO {quoted(now.name)}"
    for index in diff.shown_indexes:
        if index_sql(after, index, dialect) and not dialect.bare:
            yield f"ALTER INDEX {quoted(index.name)} {dialect.invisible if index.invisible else dialect.visible}"
    for index in diff.added_indexes:
        text = index_sql(after, index, dialect)
        if text:
            yield f"ADD {text}"


def _constraints(schema: str, after: TableInfo, diff: TableDiff, dialect: Dialect) -> Iterator[str]:
    if dialect.bare:
        return
    for key in diff.added_foreign_keys:
        yield f"ADD {foreign_key_sql(schema, after.id, key)}"
    for check in diff.added_checks:
        text = check_sql(check, dialect)
        if text:
            yield f"ADD {text}"


def _options(after: TableInfo, diff: TableDiff, dialect: Dialect) -> Iterator[str]:
    if diff.charset:
        yield _charset(after, dialect)
    if diff.auto_increment:
        yield _auto_increment(diff.auto_increment)
    if diff.comment:
        yield f"COMMENT = {literal(after.comment)}"


def _column(info: TableInfo, column: ColumnInfo, dialect: Dialect) -> str:
    return column_sql(column, dialect, counted=is_counted(info, column))


def _charset(info: TableInfo, dialect: Dialect) -> str:
    clause = dialect.charset(info.charset, info.collate)
    return f"DEFAULT {clause}" if clause else ""


def _auto_increment(base: int) -> str:
    return f"AUTO_INCREMENT = {base}" if base > 0 else ""
