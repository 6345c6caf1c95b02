"""TRUNCATE and EXCHANGE PARTITION if the partition has other rows in the destination than upstream. Pure.

TiDB stores a row whose HASH expression is NULL in the first partition. MySQL and MariaDB treat NULL as the smallest
BIGINT, so with three partitions they store it in the third. Every other row of RANGE, LIST and HASH is in the same
partition on both sides. Rows of KEY partitions are not, and such a DDL is refused.
"""

from __future__ import annotations

from typing import Final

from binlog.tidb.job import ActionType
from binlog.tidb.partition import PartitionInfo, PartitionType
from binlog.tidb.table import TableInfo

from drainer.ddl.lexer import quoted, tokens
from drainer.row.layout import replicated
from drainer.schema.steps import Ddl, Located

_NULL_IS: Final = 1 << 63  # its absolute value


def null_partition(info: TableInfo) -> int | None:
    """Number of the partition that holds the rows which upstream has in its first one because the expression is NULL;
    None where there are no such rows, or where it is the first one here, too."""
    parts = info.partition
    if parts is None or not parts.enable or parts.type != PartitionType.HASH or not parts.definitions:
        return None
    number = _NULL_IS % len(parts.definitions)
    return number if number and _may_be_null(info, parts) else None


def _may_be_null(info: TableInfo, parts: PartitionInfo) -> bool:
    """Whole numbers and columns that are NOT NULL give no NULL, added or multiplied; a function or a division may."""
    columns = {column.name.lower(): column for column in info.columns}
    for token in tokens(parts.expr):
        column = columns.get(token.value.lower()) if token.is_name else None
        plain = column.is_not_null if column is not None else token.value.isdigit() or token.value in "()+-*"
        if not plain:
            return True
    return False


def emptied(step: Ddl) -> tuple[str, ...] | None:
    """The statements of a TRUNCATE PARTITION that name the rows to delete; None if the server's own statement deletes
    the same."""
    if step.job.type != ActionType.TRUNCATE_TABLE_PARTITION or len(step.changes) != 1:
        return None
    before, after = step.changes[0].before, step.changes[0].after
    if before is None or after is None or before.info.partition is None or after.info.partition is None:
        return None
    elsewhere = null_partition(before.info)
    staying = {definition.id for definition in after.info.partition.definitions}
    definitions = before.info.partition.definitions
    gone = [number for number, definition in enumerate(definitions) if definition.id not in staying]
    if elsewhere is None or (0 in gone) == (elsewhere in gone):
        return None
    table = quoted(before.schema, before.name)
    names = [quoted(definitions[number].name) for number in gone if number != elsewhere]
    truncated = (f"ALTER TABLE {table} TRUNCATE PARTITION {', '.join(names)}",) if names else ()
    return (*truncated, f"DELETE FROM {_rows(before, elsewhere, null=0 in gone)}")


def rows_of(table: Located, number: int) -> tuple[str, ...]:
    """`t PARTITION (p) WHERE …`, for FROM: together they are upstream's rows of a partition."""
    elsewhere = null_partition(table.info)
    if elsewhere is not None and number == elsewhere:
        return (_rows(table, number, null=False),)
    all_here = _rows(table, number)
    return (all_here, _rows(table, elsewhere, null=True)) if elsewhere is not None and number == 0 else (all_here,)


def _rows(table: Located, number: int, *, null: bool | None = None) -> str:
    """`null`: only rows whose expression is NULL, or only the others."""
    parts = table.info.partition
    assert parts is not None
    where = "" if null is None else f" WHERE ({parts.expr}) IS {'' if null else 'NOT '}NULL"
    return f"{quoted(table.schema, table.name)} PARTITION ({quoted(parts.definitions[number].name)}){where}"


# EXCHANGE PARTITION by copying rows, for partitions that the server cannot exchange, or of which it would exchange
# other rows. Pure.


def is_disputed(parted: Located, number: int) -> bool:
    """Whether the partition of that name has other rows in the destination than upstream."""
    elsewhere = null_partition(parted.info)
    return elsewhere is not None and number in (0, elsewhere)


def copied(step: Ddl, parted: Located, number: int, normal: Located) -> tuple[str, ...]:
    """Exchanges the rows through a second table, which replaces the normal table in one RENAME."""
    rows = rows_of(parted, number)
    into, out = (quoted(*name) for name in tables_between(step))
    here = quoted(normal.schema, normal.name)
    names = ", ".join(quoted(column.name) for column in replicated(normal.info))
    return (
        f"DROP TABLE IF EXISTS {into}",
        f"CREATE TABLE {into} LIKE {here}",
        *(f"INSERT INTO {into} ({names}) SELECT {names} FROM {some}" for some in rows),
        *(f"DELETE FROM {some}" for some in rows),
        f"INSERT INTO {quoted(parted.schema, parted.name)} ({names}) SELECT {names} FROM {here}",
        f"RENAME TABLE {here} TO {out}, {into} TO {here}",
        f"DROP TABLE IF EXISTS {out}",
    )


def tables_between(step: Ddl) -> tuple[tuple[str, str], ...]:
    """The two tables that `copied` makes and drops: for arriving rows, for leaving ones."""
    normal = step.changes[1].before
    assert normal is not None
    return tuple((normal.schema, f"tidb_binlog_exchange_{step.job.id}_{way}") for way in ("in", "out"))
