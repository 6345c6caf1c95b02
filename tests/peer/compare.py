"""Whether a destination holds what TiDB holds: every table, row for row, as the text of one session time zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pymysql.constants import FIELD_TYPE

Connection = Any
# For pymysql.connect: values as the text the server sends, but floats, whose text TiDB and MariaDB choose differently.
AS_TEXT = {"conv": {FIELD_TYPE.FLOAT: float, FIELD_TYPE.DOUBLE: float}}
SYSTEM = {"information_schema", "performance_schema", "metrics_schema", "mysql", "sys", "inspection_schema"}
OWN = {"tidb_binlog"}
SHOWN = 5


def schemas(connection: Connection) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        return {name for (name,) in cursor.fetchall() if name.lower() not in SYSTEM | OWN}


def tables(connection: Connection, schema: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW FULL TABLES FROM `{schema}` WHERE Table_type = 'BASE TABLE'")
        return {row[0] for row in cursor.fetchall()}


def columns(connection: Connection, schema: str, table: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW COLUMNS FROM `{schema}`.`{table}`")
        return [row[0] for row in cursor.fetchall()]


def rows(connection: Connection, schema: str, table: str, names: list[str]) -> Counter[tuple[Any, ...]]:
    """Every row with how often it is there, in the form the connection converts to."""
    picked = ", ".join(f"`{name}`" for name in names)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {picked} FROM `{schema}`.`{table}`")
        return Counter(cursor.fetchall())


def differences(upstream: Connection, downstream: Connection) -> Iterator[str]:
    """One line for each thing that differs, as it is found. Both connections: `AS_TEXT`, time zone +00:00."""
    ours, theirs = schemas(upstream), schemas(downstream)
    if ours - theirs:
        yield f"schemas missing downstream: {sorted(ours - theirs)}"
    if theirs - ours:
        yield f"schemas only downstream: {sorted(theirs - ours)}"
    for schema in sorted(ours & theirs):
        there, here = tables(upstream, schema), tables(downstream, schema)
        for table in sorted(there ^ here):
            yield f"table {schema}.{table} only {'upstream' if table in there else 'downstream'}"
        for table in sorted(there & here):
            yield from table_differences(upstream, downstream, schema, table)


def table_differences(upstream: Connection, downstream: Connection, schema: str, table: str) -> Iterator[str]:
    there, here = columns(upstream, schema, table), columns(downstream, schema, table)
    if there != here:
        yield f"{schema}.{table}: columns {there} upstream, {here} downstream"
    if set(there) != set(here):
        return
    wanted, found = rows(upstream, schema, table, there), rows(downstream, schema, table, there)
    missing, surplus = wanted - found, found - wanted
    if missing or surplus:
        yield (
            f"{schema}.{table}: {missing.total()} rows missing, {surplus.total()} surplus of {wanted.total()}; "
            f"missing {list(missing)[:SHOWN]}, surplus {list(surplus)[:SHOWN]}"
        )
