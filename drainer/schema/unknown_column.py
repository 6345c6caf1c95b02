"""The schema versions in which jobs make columns public, as far as they are recorded. Pure.

They decide what is done with a row that has a column id in no known TableInfo (SchemaProvider.resolve_column): the
column is skipped, the row waits, or a DDL runs first.

A status port does not list a job before it has finished. A row with an unknown column id therefore belongs either to a
running DDL (the column is not public yet: it holds its default, which the DDL will fill in downstream as well), or to
one that has just finished and is not listed yet: then skipping the column would lose what a user wrote, as the Go
drainer does. A drainer with a backlog may read such rows when the job is already known; then the job's version decides.

A statement with several changes makes all its added and modified columns public in one schema version and removes its
dropped ones in later ones; only the last of these is the job's. Rows in between hold user values in the new columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import missing_value
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import ColumnInfo

from drainer.schema.catalog import Catalog
from drainer.schema.view import UpcomingColumn, retyped

DROPS = frozenset(
    {
        ActionType.DROP_COLUMN,
        ActionType.DROP_COLUMNS,
        ActionType.DROP_INDEX,
        ActionType.DROP_INDEXES,
        ActionType.DROP_PRIMARY_KEY,
    }
)
# Schema versions from the one in which a column, key or partition stops being public to the last of the job.
DROP_STEPS = 3
DROP_PARTITION_STEPS = 2


def upcoming_columns(jobs: Sequence[Job], catalog: Catalog) -> dict[tuple[int, int], UpcomingColumn]:
    """(table id, column id) of columns that pending `jobs` make public in a schema version that is only estimated. A
    row with another value in such a column than before the job shows that the job must have run."""
    tables = {job.table_info.id for job in jobs if job.table_info is not None and guessed(job)}
    before = {i: at.info for i in tables if (at := catalog.locate(i)) is not None}
    found: dict[tuple[int, int], UpcomingColumn] = {}
    for job in jobs if before else ():
        info = job.table_info
        if info is None or info.id not in before:
            continue
        if guessed(job):
            known = before[info.id].columns_by_id
            heirs = dict(retyped(before[info.id], info, one_changed=False, query=job.query))
            for column in info.public_columns:
                if column.id not in known:
                    found[info.id, column.id] = UpcomingColumn(_default(column), heirs.get(column.id, 0))
        before[info.id] = info
    return found


def _default(column: ColumnInfo) -> Datum:
    try:
        return missing_value(column)
    except DecodeError:
        return None


def guessed(job: Job) -> bool:
    """Whether the schema version in which the job's added columns become public is not recorded in it."""
    if job.type != ActionType.MULTI_SCHEMA_CHANGE:
        return False
    return any(kind in DROPS for kind, _ in _parts(job)) and not _recorded(job)


def _recorded(job: Job) -> int:
    return max((version for kind, version in _parts(job) if kind not in DROPS), default=0)


def public_version(job: Job, after: int = 0) -> int:
    """The schema version from which rows match the table after the job. `after`: version of the previous job, 0:
    unknown.

    Mostly the job's own version. In a statement of several changes everything it adds is public in the version recorded
    with a part that drops nothing; where the first part is a drop nothing else is recorded, but that part took three
    more versions. DROP PARTITION takes two versions after the partition stops being written, and DROP COLUMN three
    after the column stops being public: from then on updates lack it, and rows without a key cannot be matched by it.
    """
    if job.type in (ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS):
        return max(job.schema_version - DROP_STEPS, 1)
    if job.type == ActionType.DROP_TABLE_PARTITION:
        return max(job.schema_version - DROP_PARTITION_STEPS, min(after + 1, job.schema_version))
    if job.type != ActionType.MULTI_SCHEMA_CHANGE:
        return job.schema_version
    parts = _parts(job)
    dropped = [version for kind, version in parts if kind in DROPS and version]
    if not dropped or len(dropped) == len(parts):
        return job.schema_version
    return _recorded(job) or max(min(dropped) - DROP_STEPS, 1)


def kinds_of_parts(job: Job) -> frozenset[ActionType]:
    """Return the kinds of the changes of a statement of several changes; empty for any other job."""
    return frozenset(kind for kind, _ in _parts(job)) if job.type == ActionType.MULTI_SCHEMA_CHANGE else frozenset()


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
