"""Checks that existing tables fit the column selectors and the dispatch rules, before rows of them arrive."""

from __future__ import annotations

from drainer.dispatch.ddl_messages import described
from drainer.dispatch.errors import DispatchConfigError, DispatchError
from drainer.dispatch.rules import Router
from drainer.schema.steps import Ddl, Located
from drainer.schema.view import SchemaView

_QUERY_CHARS = 200


def check_view(view: SchemaView, router: Router) -> None:
    """Check the current definition of every table. Raises DispatchConfigError."""
    for table_id, versions in view.tables.items() if router.names_columns else ():
        try:
            _check(Located(table_id, versions.schema, versions.current), versions.versions[-1], router)
        except DispatchError as error:
            raise DispatchConfigError(str(error)) from error


def check_ddl(step: Ddl, router: Router) -> None:
    """Check the tables as this DDL leaves them, so that a DDL is not published if rows after it could not be. Raises
    DispatchError."""
    for change in step.changes if router.names_columns else ():
        try:
            _check(change.after, step.job.schema_version, router)
        except DispatchError as error:
            raise DispatchError(
                f"DDL job {step.job.id} at commit_ts {step.commit_ts} is not published ({step.query[:_QUERY_CHARS]}): "
                f"after it, {error}. To continue, use settings that fit the table both before and after the DDL"
            ) from error


def _check(located: Located | None, version: int, router: Router) -> None:
    table = described(located, version)
    if table is not None:
        router.check(table)
