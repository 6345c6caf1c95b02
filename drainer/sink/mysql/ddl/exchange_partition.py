"""EXCHANGE PARTITION by copying rows, for partitions that the server cannot exchange, or of which it would exchange
other rows. Pure."""

from __future__ import annotations

from drainer.ddl.dialect import Dialect
from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_objects import exchange_partition
from drainer.row.layout import replicated
from drainer.schema.steps import Ddl, Located
from drainer.sink.mysql.ddl.partition_statements import null_partition, rows_of


def exchanged(step: Ddl, dialect: Dialect) -> str | None:
    """The server's own statement; None if the changes do not show which partition it is."""
    found = _parts(step)
    if found is None:
        return None
    parted, number, normal = found
    assert parted.info.partition is not None
    name = parted.info.partition.definitions[number].name
    return exchange_partition((parted.schema, parted.name), name, (normal.schema, normal.name), dialect)


def is_disputed(step: Ddl) -> bool:
    """Whether the partition of that name has other rows in the destination than upstream (partition_statements.py)."""
    found = _parts(step)
    if found is None:
        return False
    elsewhere = null_partition(found[0].info)
    return elsewhere is not None and found[1] in (0, elsewhere)


def copied(step: Ddl) -> tuple[str, ...] | None:
    """Exchanges the rows through a second table, which replaces the normal table in one RENAME."""
    found = _parts(step)
    if found is None:
        return None
    parted, number, normal = found
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


def _parts(step: Ddl) -> tuple[Located, int, Located] | None:
    """The partitioned table, the number of its partition, the normal table, all before the job."""
    if len(step.changes) != 2 or any(c.before is None or c.after is None for c in step.changes):
        return None
    parted, normal, after = step.changes[0].before, step.changes[1].before, step.changes[1].after
    assert parted is not None and normal is not None and after is not None
    definitions = parted.info.partition.definitions if parted.info.partition else ()
    number = next((n for n, d in enumerate(definitions) if d.id == after.table_id), None)
    return None if number is None else (parted, number, normal)
