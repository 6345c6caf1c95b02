"""Parameters of a task of the change stream, and the errors of its rows."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.errors import BinlogError

from drainer.schema.table_versions import Watched
from drainer.spark.typed.fields import Fields


class SchemaChanged(BinlogError):
    """A DDL has changed a table since the query was started, and the table's rows no longer fit the query's columns."""

    def __init__(self, table: str, what: str, commit_ts: int) -> None:
        super().__init__(
            f"table {table}: {what} since the query was started (row of commit_ts {commit_ts}). Start the query again "
            f"to read on with the table's new columns, or set schema-changes = collect"
        )


class ValueUnfit(BinlogError):
    """A value from before or after a change of type does not fit the type of the column in the query."""

    def __init__(self, table: str, column: str, why: str, commit_ts: int) -> None:
        super().__init__(
            f"table {table}, row of commit_ts {commit_ts}: column {column} had another type then, and {why}. With "
            f"schema-changes = collect it is NULL, and its text is in the column added; or start after this "
            f"commit_ts with start-ts"
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Parameters of a task; picklable. `watched`: includes every DDL that affects the task's rows; a column that is not
    in it was not public when the row was written. `begin_version`: schema version at the start of the query. `collect`:
    put columns added by a DDL into the column `added` instead of raising. `zero_dates_fail`: raise for zero dates."""

    watched: Watched
    fields: Fields
    begin_version: int
    collect: bool = False
    zero_dates_fail: bool = False
