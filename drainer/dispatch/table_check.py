"""Checks that existing tables fit the column selectors and the dispatch rules, before rows of them arrive."""

from __future__ import annotations

from collections.abc import Iterable

from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.dispatch.ddl_messages import described
from drainer.dispatch.rules import Router
from drainer.schema.steps import Ddl, Located
from drainer.schema.view import SchemaView

_QUERY_CHARS = 200


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


def check_ddl(step: Ddl, router: Router) -> None:
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


def _left_by(step: Ddl) -> Iterable[Located]:
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
