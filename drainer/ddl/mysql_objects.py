"""Statements on whole databases, tables, views and sequences for MySQL, MariaDB and TiDB; and partitions, and how a DDL
changes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from binlog.tidb.document import Json
from binlog.tidb.job import ActionType
from binlog.tidb.table import DBInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo

from drainer.ddl.lexer import Name, quoted
from drainer.ddl.mysql_columns import Dialect, literal

_ALGORITHMS: Final = {1: "MERGE", 2: "TEMPTABLE"}
_INVOKER: Final = 1


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
    invokes = for_reader or security == _INVOKER
    words.append(f"SQL SECURITY {'INVOKER' if invokes else 'DEFINER'}")
    columns = ", ".join(quoted(column.name) for column in info.public_columns)
    return " ".join([*filter(None, words), f"VIEW {quoted(schema, info.name)} ({columns}) AS {select}"])


def _definer(definer: Mapping[str, Json]) -> str:
    name, host = definer.get("Username"), definer.get("Hostname")
    if definer.get("CurrentUser") is True or not isinstance(name, str) or not name:
        return ""
    return f"DEFINER = {quoted(name)}@{quoted(host if isinstance(host, str) and host else '%')}"


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


# SQL of partitioning for MySQL and MariaDB, and the partition changes of a DDL.
#
# Partitions are matched by physical id. Whether the rows of removed partitions were kept follows only from the job
# type: TRUNCATE and REORGANIZE may both leave the same names with new ids.

_WHOLE: Final = frozenset({ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING})


def partitioning_sql(parts: PartitionInfo | None) -> str:
    """`PARTITION BY …`, '' for a table without partitions."""
    if parts is None or not parts.enable:
        return ""
    names = _names(parts.columns)
    if parts.type in (PartitionType.RANGE, PartitionType.LIST):
        method = parts.type.name
        what = f"{method} COLUMNS ({names})" if parts.columns else f"{method} ({parts.expr})"
        return f"PARTITION BY {what} ({_definitions(parts, parts.definitions)})"
    if parts.type not in (PartitionType.HASH, PartitionType.KEY):
        return ""
    what = f"HASH ({parts.expr})" if parts.type == PartitionType.HASH else f"KEY ({names})"
    text = f"PARTITION BY {what} PARTITIONS {len(parts.definitions) or parts.num}"
    if any(d.name.lower() != f"p{n}" or _comment(d) for n, d in enumerate(parts.definitions)):
        text += f" ({_definitions(parts, parts.definitions)})"
    return text


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _definitions(parts: PartitionInfo, definitions: Iterable[PartitionDefinition]) -> str:
    """Return the partitions' definitions, as `PARTITION p VALUES LESS THAN (10), …`."""
    return ", ".join(f"PARTITION {quoted(one.name)}{_values(parts, one)}{_comment(one)}" for one in definitions)


def _values(parts: PartitionInfo, definition: PartitionDefinition) -> str:
    if parts.type == PartitionType.RANGE:
        return f" VALUES LESS THAN ({', '.join(definition.less_than)})"
    if parts.type != PartitionType.LIST:
        return ""
    if any(value.upper() == "DEFAULT" for row in definition.in_values for value in row):
        return " DEFAULT"
    rows = (", ".join(row) for row in definition.in_values)
    many = len(parts.columns) > 1
    return f" VALUES IN ({', '.join(f'({row})' if many else row for row in rows)})"


def _comment(definition: PartitionDefinition) -> str:
    comment = definition.rest.get("comment")
    return f" COMMENT = {literal(comment)}" if isinstance(comment, str) and comment else ""


def partition_clauses(before: PartitionInfo | None, after: PartitionInfo | None, kind: ActionType) -> tuple[str, ...]:
    """The clauses of ALTER TABLE that make the partition changes, in order. `kind`: type of the DDL job. REMOVE
    PARTITIONING, PARTITION BY and REORGANIZE PARTITION keep all rows, DROP and TRUNCATE PARTITION remove them."""
    had, has = _enabled(before), _enabled(after)
    if has is None:
        return () if had is None else ("REMOVE PARTITIONING",)
    if had is None:
        return (partitioning_sql(has),)
    if kind in _WHOLE:
        return () if _same(had, has) else (partitioning_sql(has),)
    if kind == ActionType.TRUNCATE_TABLE_PARTITION:
        old = {d.name.lower(): d.id for d in had.definitions}
        emptied = [d.name for d in has.definitions if old.get(d.name.lower()) != d.id]
        return (f"TRUNCATE PARTITION {_names(emptied)}",) if emptied else ()
    if has.type not in (PartitionType.RANGE, PartitionType.LIST):
        more = (len(has.definitions) or has.num) - (len(had.definitions) or had.num)
        change = f"ADD PARTITION PARTITIONS {more}" if more > 0 else f"COALESCE PARTITION {-more}"
        return (change,) if more else ()
    if kind == ActionType.REORGANIZE_PARTITION:
        return (_reorganized(had, has),)
    return tuple(_come_and_gone(had, has))


def _enabled(parts: PartitionInfo | None) -> PartitionInfo | None:
    return parts if parts is not None and parts.enable else None


def _same(had: PartitionInfo, has: PartitionInfo) -> bool:
    if (had.type, had.expr, had.columns, had.num) != (has.type, has.expr, has.columns, has.num):
        return False
    return [(d.name, d.less_than, d.in_values) for d in had.definitions] == [
        (d.name, d.less_than, d.in_values) for d in has.definitions
    ]


def _reorganized(had: PartitionInfo, has: PartitionInfo) -> str:
    stay = {d.id for d in had.definitions} & {d.id for d in has.definitions}
    gone = [n for n, d in enumerate(had.definitions) if d.id not in stay]
    come = [n for n, d in enumerate(has.definitions) if d.id not in stay]
    beside = all(run == list(range(run[0], run[0] + len(run))) for run in (gone, come) if run)
    if not gone or not come or not beside or gone[0] != come[0]:
        return partitioning_sql(has)
    into = _definitions(has, (has.definitions[n] for n in come))
    return f"REORGANIZE PARTITION {_names(had.definitions[n].name for n in gone)} INTO ({into})"


def _come_and_gone(had: PartitionInfo, has: PartitionInfo) -> Iterator[str]:
    old, new = {d.name.lower(): d for d in had.definitions}, {d.name.lower(): d for d in has.definitions}
    gone = [d.name for name, d in old.items() if name not in new]
    come = [d for name, d in new.items() if name not in old]
    if gone:
        yield f"DROP PARTITION {_names(gone)}"
    if come:
        yield f"ADD PARTITION ({_definitions(has, come)})"
