"""The SQL text of a job and the current database it needs. Pure.

Used for a TiDB destination, and for every destination where the TableInfos do not show what a job did: the normalized
text of the DDL binlog, or the job's query where the binlog has not arrived yet. Where that text depends on the writer's
session or on other jobs, the statement is generated from the catalog, fully qualified:

- RENAME: an unqualified old name is resolved in the writer's session, which the job does not record.
- EXCHANGE PARTITION: the job's schema is the normal table's, the text's first name the partitioned one's.
- DROP TABLE a, b: a job for each table, each with the complete text; the first would drop b before b's last rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlog.tidb.job import ActionType, Job

from drainer.ddl.dialect import Dialect
from drainer.ddl.lexer import quoted, statements
from drainer.ddl.mysql_objects import exchange_partition, rename_tables
from drainer.schema import job_kinds
from drainer.schema.steps import Located, TableChange

Changes = tuple[TableChange, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """`use` is the current database the text needs, "" when it must run without one."""

    schema: str
    use: str
    sql: tuple[str, ...]


def statement(job: Job, query: str, changes: Changes, schema: str) -> Statement:
    """Return the SQL of `job`. `query`: upstream's text; `schema`: the name of the job's schema; `changes`: the effects
    of the job on the replicated tables (of a multi-table RENAME perhaps not all)."""
    kind = job.type
    if kind in job_kinds.DROPS and changes and changes[0].before:
        return _drop(job_kinds.DROPS[kind], changes[0].before)
    if kind in (ActionType.RENAME_TABLE, ActionType.RENAME_TABLES):
        renamed = _rename(changes)
        if renamed is not None:
            return renamed
    if kind == ActionType.EXCHANGE_TABLE_PARTITION:
        exchanged = _exchange(changes)
        if exchanged is not None:
            return exchanged
    use = "" if kind in job_kinds.WITHOUT_DATABASE else schema
    return Statement(schema, use, statements(query))


def _drop(what: str, table: Located) -> Statement:
    text = f"DROP {what} IF EXISTS {quoted(table.schema, table.name)}"
    return Statement(table.schema, table.schema, (text,))


def _rename(changes: Changes) -> Statement | None:
    pairs = [(change.before, change.after) for change in changes if change.before and change.after]
    if not pairs or len(pairs) < len(changes):
        return None
    schema = pairs[0][0].schema
    text = rename_tables(((old.schema, old.name), (new.schema, new.name)) for old, new in pairs)
    return Statement(schema, schema, (text,))


def _exchange(changes: Changes) -> Statement | None:
    if len(changes) != 2 or changes[0].before is None or changes[1].before is None or changes[1].after is None:
        return None
    parted, normal = changes[0].before, changes[1].before
    definitions = parted.info.partition.definitions if parted.info.partition else ()
    partition = next((d.name for d in definitions if d.id == changes[1].after.table_id), None)
    if partition is None:
        return None
    places = (parted.schema, parted.name), (normal.schema, normal.name)
    text = exchange_partition(places[0], partition, places[1], Dialect())
    return Statement(parted.schema, parted.schema, (text,))
