"""SQL of partitioning for MySQL and MariaDB. Pure."""

from __future__ import annotations

from binlog.tidb.partition import PartitionDefinition, PartitionInfo, PartitionType
from binlog.tidb.table import TableInfo

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import literal
from drainer.ddl.partition_diff import (
    AddPartitions,
    CountPartitions,
    DropPartitions,
    PartitionDiff,
    RemovePartitioning,
    ReorganizePartitions,
    Repartition,
    TruncatePartitions,
)


def partitioning_sql(info: TableInfo) -> str:
    """`PARTITION BY …`, '' for a table without partitions."""
    parts = info.partition
    if parts is None or not parts.enable:
        return ""
    names = ", ".join(map(quoted, parts.columns))
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


def _definitions(parts: PartitionInfo, definitions: tuple[PartitionDefinition, ...]) -> str:
    return ", ".join(definition_sql(parts, definition) for definition in definitions)


def definition_sql(parts: PartitionInfo, definition: PartitionDefinition) -> str:
    """`PARTITION p VALUES LESS THAN (10)`."""
    return f"PARTITION {quoted(definition.name)}{_values(parts, definition)}{_comment(definition)}"


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


def partition_change_sql(diff: PartitionDiff, after: TableInfo) -> str:
    """The ALTER TABLE clause of one partition change."""
    if isinstance(diff, RemovePartitioning):
        return "REMOVE PARTITIONING"
    if isinstance(diff, Repartition):
        return partitioning_sql(after)
    if isinstance(diff, CountPartitions):
        return f"ADD PARTITION PARTITIONS {diff.more}" if diff.more > 0 else f"COALESCE PARTITION {-diff.more}"
    if isinstance(diff, TruncatePartitions):
        return f"TRUNCATE PARTITION {', '.join(map(quoted, diff.names))}"
    if isinstance(diff, DropPartitions):
        return f"DROP PARTITION {', '.join(map(quoted, diff.names))}"
    parts = after.partition
    assert parts is not None
    if isinstance(diff, AddPartitions):
        return f"ADD PARTITION ({_definitions(parts, diff.definitions)})"
    assert isinstance(diff, ReorganizePartitions)
    names = ", ".join(map(quoted, diff.names))
    return f"REORGANIZE PARTITION {names} INTO ({_definitions(parts, diff.definitions)})"
