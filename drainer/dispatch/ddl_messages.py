"""Converts a DDL to the messages that describe it, and chooses their topics; and checks that the tables that it leaves
fit the dispatch rules.

There is one message for each table: a RENAME of several tables becomes a RENAME of each, and a batch of CREATE TABLE
becomes a CREATE TABLE of each. A DROP TABLE of several tables already arrives as a job for each. The topic is that of
the table before the DDL. A DDL of a database, of the complete cluster, of a view or of a sequence goes to the default
topic. A DDL of a GLOBAL TEMPORARY table has no message, because no reader ever gets rows of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from binlog.errors import DecodeError
from binlog.tidb.job import ActionType

from drainer.ddl.mysql_columns import Dialect
from drainer.ddl.mysql_objects import rename_tables
from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.dispatch.rules import Router
from drainer.protocol.encoder import Ddl, DdlScope
from drainer.protocol.table import Table, table_of
from drainer.row.column_type import ColumnType
from drainer.row.layout import published
from drainer.schema import job_kinds, steps
from drainer.schema.job_policy import of_change
from drainer.schema.steps import Located, TableChange
from drainer.schema.view import SchemaView

# For these jobs the message has a statement with fully qualified names, or of one table where the original statement
# names several.
_REWRITTEN = frozenset({*job_kinds.DROPS, ActionType.EXCHANGE_TABLE_PARTITION, ActionType.RENAME_TABLE})
_QUERY_CHARS = 200


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """One DDL in the form that encoders need, and its topic."""

    topic: str
    ddl: Ddl


def ddl_messages(step: steps.Ddl, router: Router) -> list[DdlMessage]:
    """Return the messages in the order in which a reader applies them."""
    if step.is_of_temporary_table:
        return []
    if step.merged:
        texts = ["; ".join(of_change(step, one, Dialect())) for one in step.changes]
        kind = int(step.job.type)
        return [_message(step, router, one, kind, text) for one, text in zip(step.changes, texts, strict=True) if text]
    if step.job.type == ActionType.RENAME_TABLES and not step.rewritten:
        moved = [one for one in step.changes if not one.keeps_name]  # routes may give both names one
        return [_message(step, router, one, int(ActionType.RENAME_TABLE), _rename(step, one)) for one in moved]
    if step.job.type == ActionType.CREATE_TABLES and len(step.sql) == len(step.changes):
        each = zip(step.changes, step.sql, strict=True)
        return [_message(step, router, one, int(ActionType.CREATE_TABLE), text) for one, text in each]
    if step.job.type == ActionType.DROP_SCHEMA and step.by_rules and not step.rewritten:
        each = zip(step.changes, step.sql, strict=True)
        return [_message(step, router, one, int(ActionType.DROP_TABLE), text) for one, text in each]
    if step.job.type in job_kinds.ON_SCHEMA | job_kinds.ON_CLUSTER or not step.changes:
        return [_message(step, router, None, int(step.job.type), _text(step))]
    return [_message(step, router, step.changes[0], int(step.job.type), _text(step))]


def ddl_partitions(scope: DdlScope, partitions: int) -> range:
    """Return the partitions of a topic that get a DDL."""
    if scope is DdlScope.NONE:
        return range(0)
    return range(1 if scope is DdlScope.FIRST_PARTITION else partitions)


def _text(step: steps.Ddl) -> str:
    if step.rewritten or step.job.type in _REWRITTEN:
        return "; ".join(step.sql)
    return step.query


def _rename(step: steps.Ddl, change: TableChange) -> str:
    old, new = change.before, change.after
    if old is None or new is None:
        return step.query
    return rename_tables([((old.schema, old.name), (new.schema, new.name))])


def _message(step: steps.Ddl, router: Router, change: TableChange | None, type_code: int, query: str) -> DdlMessage:
    before, after = (None, None) if change is None else (change.before, change.after)
    version = step.job.schema_version
    named, first = after or before, before or after
    ddl = Ddl(
        commit_ts=step.commit_ts,
        start_ts=step.job.start_ts,
        schema=named.schema if named is not None else step.schema,
        table=named.name if named is not None else "",
        query=query,
        type_code=type_code,
        before=described(before, version - 1),
        after=described(after, version),
    )
    has_rows = first is not None and first.info.has_rows
    return DdlMessage(router.topic(first.schema, first.name) if first and has_rows else router.default_topic, ddl)


def described(located: Located | None, version: int) -> Table | None:
    """Return the table with all its columns. None if `located` is None, or if a column has a type that rows cannot
    carry; then the table has no rows either."""
    if located is None:
        return None
    try:
        column_types = [(column.id, ColumnType.of(column.type)) for column in published(located.info)]
    except DecodeError:
        return None
    return table_of(located.schema, located.info, column_types, version, version)


# Checks that existing tables fit the column selectors and the dispatch rules, before rows of them arrive.


def check_view(view: SchemaView, router: Router) -> None:
    """Check the current definition of every table, when the drainer starts. Raises DispatchConfigError."""
    error = unfit_table(view, router)
    if error is not None:
        raise DispatchConfigError(str(error)) from error


def unfit_table(view: SchemaView, router: Router) -> DispatchError | None:
    """Return the error of a table whose current definition does not fit; None if all tables fit.

    A published DDL is checked by `check_ddl`. This finds a table that was changed by a DDL that is not published: it is
    filtered or skipped, or it renames a table that was not replicated."""
    for table_id, versions in view.tables.items() if router.names_columns else ():
        try:
            _check(Located(table_id, versions.schema, versions.current), versions.versions[-1], router)
        except DispatchError as error:
            return error
    return None


def unpublished(error: DispatchError, after_ts: int) -> DispatchError:
    """Return the error of rows after `after_ts` that cannot be published because their table does not fit."""
    return DispatchError(
        f"rows after commit_ts {after_ts} are not published: {error}. To continue, use settings that fit the table "
        "both before and after its change"
    )


def check_ddl(step: steps.Ddl, router: Router) -> None:
    """Check the tables as this DDL leaves them, so that a DDL is not published if rows after it could not be. Raises
    DispatchError."""
    for located in _left_by(step) if router.names_columns else ():
        try:
            _check(located, step.job.schema_version, router)
        except DispatchError as error:
            raise DispatchError(
                f"DDL job {step.job.id} at commit_ts {step.commit_ts} is not published ({step.query[:_QUERY_CHARS]}): "
                f"after it, {error}. To continue, use settings that fit the table both before and after the DDL"
            ) from error


def _left_by(step: steps.Ddl) -> Iterable[Located]:
    """A name that a table has only between two renames of one statement never has rows."""
    there: dict[int, Located] = {}
    for change in step.changes:
        if change.before is not None:
            there.pop(change.before.table_id, None)
        if change.after is not None:
            there[change.after.table_id] = change.after
    return there.values()


def _check(located: Located, version: int, router: Router) -> None:
    if not located.info.has_rows:
        return  # a rule may name what it does not have
    table = described(located, version)
    if table is not None:
        router.check(table)
