"""Statements on whole databases, tables, views and sequences for MySQL, MariaDB and TiDB. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from binlog.tidb.document import Json
from binlog.tidb.table import DBInfo, TableInfo

from drainer.ddl.dialect import Dialect
from drainer.ddl.lexer import Name, quoted
from drainer.ddl.mysql_columns import literal

_ALGORITHMS: Final = {1: "MERGE", 2: "TEMPTABLE"}
_SECURITY: Final = {0: "DEFINER", 1: "INVOKER"}


def create_database(database: DBInfo, dialect: Dialect, *, if_not_exists: bool = False) -> str:
    """CREATE DATABASE with upstream's character set and collation."""
    return f"CREATE DATABASE {'IF NOT EXISTS ' * if_not_exists}{_database(database, dialect)}"


def alter_database(database: DBInfo, dialect: Dialect) -> str:
    """ALTER DATABASE: character set and collation."""
    return f"ALTER DATABASE {_database(database, dialect)}"


def _database(database: DBInfo, dialect: Dialect) -> str:
    charset = dialect.charset(database.charset, database.collate)
    return quoted(database.name) + (f" DEFAULT {charset}" if charset else "")


def rename_tables(pairs: Iterable[tuple[Name, Name]]) -> str:
    """RENAME TABLE old TO new, …"""
    return "RENAME TABLE " + ", ".join(f"{quoted(*old)} TO {quoted(*new)}" for old, new in pairs)


def exchange_partition(parted: Name, partition: str, table: Name, dialect: Dialect) -> str:
    """ALTER TABLE … EXCHANGE PARTITION. Without validation where supported: upstream has validated the rows."""
    text = f"ALTER TABLE {quoted(*parted)} EXCHANGE PARTITION {quoted(partition)} WITH TABLE {quoted(*table)}"
    return text + " WITHOUT VALIDATION" * dialect.validation


def create_view(schema: str, info: TableInfo, *, definer: bool = False, for_reader: bool = False) -> str:
    """CREATE OR REPLACE VIEW, '' where the TableInfo has no SELECT. TiDB qualifies the names in the SELECT.

    `definer`: upstream's user is the view's DEFINER, and may not exist downstream; otherwise the user who runs the
    statement. `for_reader`: SQL SECURITY INVOKER."""
    view = info.view
    select = view.get("view_select") if view else None
    if view is None or not isinstance(select, str) or not select:
        return ""
    words = ["CREATE OR REPLACE"]
    algorithm, security = view.get("view_algorithm"), view.get("view_security")
    if isinstance(algorithm, int) and algorithm in _ALGORITHMS:
        words.append(f"ALGORITHM = {_ALGORITHMS[algorithm]}")
    user = view.get("view_definer")
    if definer and isinstance(user, Mapping) and not for_reader:
        words.append(_definer(user))
    words.append(f"SQL SECURITY {'INVOKER' if for_reader else _security(security)}")
    columns = ", ".join(quoted(column.name) for column in info.public_columns)
    return " ".join([*filter(None, words), f"VIEW {quoted(schema, info.name)} ({columns}) AS {select}"])


def _definer(definer: Mapping[str, Json]) -> str:
    name, host = definer.get("Username"), definer.get("Hostname")
    if definer.get("CurrentUser") is True or not isinstance(name, str) or not name:
        return ""
    return f"DEFINER = {quoted(name)}@{quoted(host if isinstance(host, str) and host else '%')}"


def _security(number: Json | None) -> str:
    return _SECURITY.get(number, "DEFINER") if isinstance(number, int) else "DEFINER"


def create_sequence(schema: str, info: TableInfo) -> str:
    """CREATE SEQUENCE, '' where the TableInfo has none. Its current value is in no binlog."""
    text = _sequence(f"CREATE SEQUENCE {quoted(schema, info.name)}", info)
    comment = info.sequence.get("sequence_comment") if info.sequence else None
    return text + (f" COMMENT = {literal(comment)}" if isinstance(comment, str) and comment else "")


def alter_sequence(schema: str, info: TableInfo) -> str:
    """ALTER SEQUENCE: the definition without its comment, which MariaDB does not accept there."""
    return _sequence(f"ALTER SEQUENCE {quoted(schema, info.name)}", info)


def _sequence(head: str, info: TableInfo) -> str:
    sequence = info.sequence
    if sequence is None:
        return ""

    def number(name: str) -> int:
        value = sequence.get(name)
        return value if isinstance(value, int) else 0

    cached = number("sequence_cache_value") if sequence.get("sequence_cache") else 0
    cycle = "CYCLE" if sequence.get("sequence_cycle") else "NOCYCLE"
    return (
        f"{head} START WITH {number('sequence_start')} INCREMENT BY {number('sequence_increment') or 1} "
        f"MINVALUE {number('sequence_min_value')} MAXVALUE {number('sequence_max_value')} "
        f"{f'CACHE {cached}' if cached else 'NOCACHE'} {cycle}"
    )
