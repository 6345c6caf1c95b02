"""The statements that run a job on a TiDB: upstream's text, unedited. Pure.

The effect of a text may depend on the writer's session, which the job does not record:

- the current database: see schema/statement.py;
- the time zone: a TIMESTAMP's DEFAULT 'text' would be another moment here. So statements are generated from the
  difference of the TableInfos instead. A CREATE TABLE, whose text contains more than the TableInfo, runs as it is,
  followed by a statement that sets the default;
- the collation of the database: if the destination's database has another one, a CREATE TABLE that names no collation
  is generated, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.job import ActionType

from drainer.ddl.dialect import Dialect
from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import UnsupportedType, default_sql, has_instant
from drainer.ddl.mysql_objects import create_view
from drainer.ddl.table_diff import same_default, shown_columns
from drainer.schema.steps import Ddl, TableChange
from drainer.sink.mysql.ddl.server import Server
from drainer.sink.mysql.ddl.translate import CREATES, Translation, generated, names_definer

# A character set or collation that a TiDB of another version has not.
_UNKNOWN_COLLATION: Final = (1115, 1273)
_DATABASES: Final = frozenset({ActionType.CREATE_SCHEMA, ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE})


def translate(step: Ddl, server: Server, dialect: Dialect) -> Translation:
    """The statements for a TiDB; an operator's text runs unchanged."""
    text = Translation(step.sql, use=step.use)
    if step.rewritten:
        return text
    try:
        made = generated(step, dialect)
    except UnsupportedType:
        made = None
    view = step.changes[0].after if step.job.type == ActionType.CREATE_VIEW and step.changes else None
    select = create_view(view.schema, view.info, definer=names_definer(step.query)) if view is not None else ""
    if select:
        return Translation((select,), optional=True)
    if made is not None and (step.job.type in _DATABASES or not step.sql):
        return Translation(made)
    if made is not None and _names_no_collation(step, server.database_collation):
        return Translation(made)
    if dialect.time_zone:  # the session's is the writer's
        return text
    moments = [(change, list(_moments(step, change))) for change in step.changes]
    if any(columns for _, columns in moments):
        if step.job.type in CREATES:
            return Translation((*step.sql, *_defaults(moments, dialect)), use=step.use)
        if made is not None:
            return Translation(made)
    return Translation(step.sql, made, _UNKNOWN_COLLATION, step.use) if made else text


def _names_no_collation(step: Ddl, there: str) -> bool:
    """Whether a CREATE TABLE uses the database's default collation, which differs from upstream's."""
    if step.job.type not in CREATES or not there or "COLLATE" in step.query.upper():
        return False
    return any(change.after and change.after.info.collate.lower() != there.lower() for change in step.changes)


def _moments(step: Ddl, change: TableChange) -> Iterator[ColumnInfo]:
    """TIMESTAMP columns that get a moment for their default which the text does not give in UTC."""
    if change.after is None:
        return
    known = {} if change.before is None else change.before.info.columns_by_id
    for column in shown_columns(change.after.info):
        was = known.get(column.id)
        new = has_instant(column) and (was is None or not same_default(was, column))
        if new and str(column.default) not in step.query:
            yield column


def _defaults(moments: list[tuple[TableChange, list[ColumnInfo]]], dialect: Dialect) -> Iterator[str]:
    for change, columns in moments:
        assert change.after is not None or not columns
        if change.after is not None and columns:
            clauses = (f"ALTER COLUMN {quoted(c.name)} SET DEFAULT {default_sql(c, dialect)}" for c in columns)
            yield f"ALTER TABLE {quoted(change.after.schema, change.after.name)} {', '.join(clauses)}"
