"""A row with a column that no TableInfo known explains: may the column be left out, or must the row wait? Pure.

Where the history is a status port it lacks the job that is about to finish. A row that carries a column id unknown
to the table then belongs to a DDL that is running (the column is not public yet: nobody has written to it, it holds
its default, and the DDL will fill the same default downstream), or to one that has just finished and whose job the
port does not show yet: leaving the column out would lose what a user wrote (the Go drainer's bug, X-08).
"""

from __future__ import annotations

from enum import Enum

from binlog.tidb.table import TableInfo


class Verdict(Enum):
    """LEAVE_OUT: decode without the column. WAIT: end the batch before the row and read the history again."""

    LEAVE_OUT = "leave out"
    WAIT = "wait"


def unknown_column(fresh: TableInfo | None, column_id: int) -> Verdict:
    """`fresh` is the table as the status port shows it (`/schema?table_id=N`), None when it is gone there.

    Ask for it first and read the history after it: then a column that is gone in `fresh` was added and dropped by
    jobs that the history shows by now, or its DDL was rolled back.
    """
    if fresh is None:
        return Verdict.LEAVE_OUT
    column = fresh.columns_by_id.get(column_id)
    return Verdict.WAIT if column is not None and column.is_public else Verdict.LEAVE_OUT
