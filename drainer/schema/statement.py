"""Which SQL runs downstream for a job, and in which current database. Pure.

Mostly upstream's own text: the DDL binlog's restored one (X-04), or the job's where the binlog has not come yet.
Where that text leans on the writer's session or on other jobs, the statement is written anew from what the
catalog knows, fully qualified:

- RENAME (X-17): an unqualified old name resolves in the writer's session, which no job tells.
- EXCHANGE PARTITION: the job's schema is the normal table's, the text's first name the partitioned one's (X-10).
- DROP TABLE a, b: a job for each table, all with the whole text; the first would drop b before its last rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlog.tidb.job import ActionType, Job

from drainer.ddl.lexer import quoted, statements, tokens
from drainer.schema import kinds
from drainer.step import Located, TableChange

Changes = tuple[TableChange, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """`use` is the current database the text needs, "" when it must run without one."""

    schema: str
    use: str
    sql: tuple[str, ...]


def statement(job: Job, query: str, changes: Changes, schema: str) -> Statement:
    """The SQL of `job`. `query` is upstream's text, `schema` the job's schema by name, `changes` what the job does
    to the tables that are replicated (of a multi-table RENAME perhaps not all)."""
    kind = job.type
    if kind in kinds.DROPS and changes and changes[0].before:
        return _drop(kinds.DROPS[kind], changes[0].before)
    if kind in (ActionType.RENAME_TABLE, ActionType.RENAME_TABLES):
        renamed = _rename(changes)
        if renamed is not None:
            return renamed
    if kind == ActionType.EXCHANGE_TABLE_PARTITION:
        exchanged = _exchange(query, changes)
        if exchanged is not None:
            return exchanged
    use = "" if kind in kinds.WITHOUT_DATABASE else schema
    return Statement(schema, use, statements(query))


def _drop(what: str, table: Located) -> Statement:
    text = f"DROP {what} IF EXISTS {quoted(table.schema, table.name)}"
    return Statement(table.schema, table.schema, (text,))


def _rename(changes: Changes) -> Statement | None:
    pairs = []
    for change in changes:
        if change.before is None or change.after is None:
            return None
        old, new = change.before, change.after
        pairs.append(f"{quoted(old.schema, old.name)} TO {quoted(new.schema, new.name)}")
    if not pairs or changes[0].before is None:
        return None
    schema = changes[0].before.schema
    return Statement(schema, schema, ("RENAME TABLE " + ", ".join(pairs),))


def _exchange(query: str, changes: Changes) -> Statement | None:
    if len(changes) != 2 or changes[0].before is None or changes[1].before is None or changes[1].after is None:
        return None
    parted, normal = changes[0].before, changes[1].before
    definitions = parted.info.partition.definitions if parted.info.partition else ()
    partition = next((d.name for d in definitions if d.id == changes[1].after.table_id), None)
    if partition is None:
        return None
    text = (
        f"ALTER TABLE {quoted(parted.schema, parted.name)} EXCHANGE PARTITION {quoted(partition)} "
        f"WITH TABLE {quoted(normal.schema, normal.name)}"
    )
    words = [t.value.upper() for t in tokens(query) if t.kind == "word"]
    if words[-2:] == ["WITHOUT", "VALIDATION"]:
        text += " WITHOUT VALIDATION"
    return Statement(parted.schema, parted.schema, (text,))
