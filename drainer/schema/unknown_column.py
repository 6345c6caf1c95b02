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

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.default import missing_value
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo, TableInfo

from drainer.schema.catalog import Catalog
from drainer.schema.view import Coming, retyped

_DROPS = frozenset(
    {
        ActionType.DROP_COLUMN,
        ActionType.DROP_COLUMNS,
        ActionType.DROP_INDEX,
        ActionType.DROP_INDEXES,
        ActionType.DROP_PRIMARY_KEY,
    }
)
# Versions from the one in which a column or key stops being public (or rows know a partition no more) to the last.
DROP_STEPS = 3
DROP_PARTITION_STEPS = 2


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


def coming_columns(pending: Iterable[Job], catalog: Catalog) -> dict[tuple[int, int], Coming]:
    """(table id, column id) of what pending jobs make public in a version that is only guessed: a row that shows more
    in such a column than it held before tells that it is time."""
    jobs = list(pending)
    tables = {job.table_info.id for job in jobs if job.table_info is not None and guessed(job)}
    before = {i: at.info for i in tables if (at := catalog.locate(i)) is not None}
    found: dict[tuple[int, int], Coming] = {}
    for job in jobs if before else ():
        info = job.table_info
        if info is None or info.id not in before:
            continue
        if guessed(job):
            known = before[info.id].columns_by_id
            heirs = dict(retyped(before[info.id], info, one_changed=False, query=job.query))
            for column in info.public_columns:
                if column.id not in known:
                    found[info.id, column.id] = Coming(_default(column), heirs.get(column.id, 0))
        before[info.id] = info
    return found


def _default(column: ColumnInfo) -> Datum:
    try:
        return missing_value(column)
    except DecodeError:
        return None


def unknown_until(job: Job) -> Verdict:
    """`job` makes the unknown column public and has not run downstream; the row is of a version before it is due."""
    return Verdict.RUN_FIRST if guessed(job) else Verdict.LEAVE_OUT


def guessed(job: Job) -> bool:
    """Whether the version in which the job's added columns are public is not recorded with it."""
    if job.type != ActionType.MULTI_SCHEMA_CHANGE:
        return False
    return any(kind in _DROPS for kind, _ in _parts(job)) and not _recorded(job)


def _recorded(job: Job) -> int:
    return max((version for kind, version in _parts(job) if kind not in _DROPS), default=0)


def public_version(job: Job, after: int = 0) -> int:
    """The version from which rows are as the job leaves the table. `after`: of the job before it, where known.

    Mostly its own version. In a statement of several changes everything it adds is public in the one that is recorded
    with a part that drops nothing; where the first part drops something nothing else is recorded, but that part then
    took three more versions. DROP PARTITION takes two more after the one in which rows know the partition no more, and
    DROP COLUMN three more after the one in which the column is not public: behind that updates do not carry it, and
    rows without a key are not found by what they lack.
    """
    if job.type in (ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS):
        return max(job.schema_version - DROP_STEPS, 1)
    if job.type == ActionType.DROP_TABLE_PARTITION:
        return max(job.schema_version - DROP_PARTITION_STEPS, min(after + 1, job.schema_version))
    if job.type != ActionType.MULTI_SCHEMA_CHANGE:
        return job.schema_version
    parts = _parts(job)
    dropped = [version for kind, version in parts if kind in _DROPS and version]
    if not dropped or len(dropped) == len(parts):
        return job.schema_version
    return _recorded(job) or max(min(dropped) - DROP_STEPS, 1)


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
