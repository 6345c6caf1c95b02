"""A row with a column that no TableInfo known explains: may the column be left out, or must the row wait? Pure.

Where the history is a status port it lacks the job that is about to finish. A row that carries a column id unknown
to the table then belongs to a DDL that is running (the column is not public yet: nobody has written to it, it holds
its default, and the DDL will fill the same default downstream), or to one that has just finished and whose job the
port does not show yet: leaving the column out would lose what a user wrote (the Go drainer's bug, X-08). A drainer
that is behind meets such rows when the job is long known: then the job's version decides, not the port.

A statement with several changes makes all its added and modified columns public in one version and takes its dropped
ones away in later ones; only the last of these is the job's. Rows between carry what users wrote in the new columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import TableInfo

_DROPS = frozenset({ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS, ActionType.DROP_INDEX, ActionType.DROP_INDEXES})


class Verdict(Enum):
    """LEAVE_OUT: decode without the column. WAIT: end the batch before the row and read the history again. RUN_FIRST:
    the known job that makes the column public must run before the row."""

    LEAVE_OUT = "leave out"
    WAIT = "wait"
    RUN_FIRST = "run first"


def unknown_column(fresh: TableInfo | None, column_id: int) -> Verdict:
    """`fresh` is the table as the status port shows it (`/schema?table_id=N`), None when it is gone there.

    Ask for it first and read the history after it: then a column that is gone in `fresh` was added and dropped by
    jobs that the history shows by now, or its DDL was rolled back.
    """
    if fresh is None:
        return Verdict.LEAVE_OUT
    column = fresh.columns_by_id.get(column_id)
    return Verdict.WAIT if column is not None and column.is_public else Verdict.LEAVE_OUT


def publisher(pending: Iterable[Job], table_id: int, column_id: int) -> Job | None:
    """The first of these jobs, in version order, after which the table has the column."""
    for job in pending:
        info = job.table_info
        if info is not None and info.id == table_id:
            column = info.columns_by_id.get(column_id)
            if column is not None and column.is_public:
                return job
    return None


def unknown_until(job: Job) -> Verdict:
    """`job` makes the unknown column public and has not run downstream; the row is of a version before it is due."""
    if job.type != ActionType.MULTI_SCHEMA_CHANGE or public_version(job):
        return Verdict.LEAVE_OUT
    # Where a column's type changes, a row without the new column would get its default instead of the old value.
    modified = any(kind == ActionType.MODIFY_COLUMN for kind, _ in _parts(job))
    return Verdict.LEAVE_OUT if modified else Verdict.RUN_FIRST


def public_version(job: Job) -> int:
    """The version in which everything a job adds is public: its own, but for a statement of several changes the one
    recorded with a part that drops nothing. 0 where it is not recorded: the parts share one version, which is noted
    with the first alone, and a drop overwrites it with those of its later steps."""
    if job.type != ActionType.MULTI_SCHEMA_CHANGE:
        return job.schema_version
    parts = _parts(job)
    if not any(kind in _DROPS for kind, _ in parts):
        return job.schema_version
    return max((version for kind, version in parts if kind not in _DROPS), default=job.schema_version)


def _parts(job: Job) -> list[tuple[ActionType, int]]:
    """Kind and schema version of each part of a statement of several changes."""
    info = job.rest.get("multi_schema_info")
    subs = info.get("sub_jobs") if isinstance(info, Mapping) else None
    found = []
    for sub in subs if isinstance(subs, list) else []:
        if isinstance(sub, Mapping):
            kind, version = sub.get("type"), sub.get("schema_version")
            if isinstance(kind, int):
                found.append((ActionType(kind), version if isinstance(version, int) else 0))
    return found
