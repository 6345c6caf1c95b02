"""Unique keys that upstream does not check any more because a job is taking them away (rule 12). Pure.

TiDB stops checking a unique key some versions before the job's own, so rows of those versions may hold one value
twice while the destination still has the key. What these functions find is what the pipeline then does about it: no
batch is spread from the job's start on, and a key that refuses rows is dropped before them.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import IndexInfo, TableInfo

from drainer.schema.catalog import Catalog
from drainer.schema.unknown_column import guessed

_TAKES_KEYS = frozenset(
    {
        ActionType.DROP_INDEX,
        ActionType.DROP_INDEXES,
        ActionType.DROP_PRIMARY_KEY,
        ActionType.DROP_COLUMN,
        ActionType.DROP_COLUMNS,
        ActionType.MULTI_SCHEMA_CHANGE,
    }
)
_TAKES_COLUMNS = frozenset({ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS, ActionType.MULTI_SCHEMA_CHANGE})
# What else these do, older rows do not mind: a column that goes is only left out of them. A statement of several
# changes stands before every row of a version in which its keys are not checked (column.public_version).
_BEFORE_ITS_START = _TAKES_KEYS - {ActionType.MULTI_SCHEMA_CHANGE}


def lost_keys(before: TableInfo, after: TableInfo, *, fold_only: bool = False) -> frozenset[str]:
    """Names, in lower case, of the unique keys that only `before` has; `fold_only`: without those that hold NULLs. One
    that is renamed keeps its id, and one that is built anew for a changed column its name."""
    names = {index.name.lower() for index in after.unique_indexes()}
    ids = {index.id for index in after.unique_indexes()} - {0}
    keys = (index for index in before.unique_indexes() if not fold_only or _never_null(before, index))
    return frozenset(index.name.lower() for index in keys if index.id not in ids) - names


def _never_null(table: TableInfo, index: IndexInfo) -> bool:
    return index.primary or all(column.is_not_null for column in table.index_columns(index))


def loose_from(pending: Iterable[Job], catalog: Catalog) -> int | None:
    """The ts from which some unique key of the catalog may not be checked upstream, updates may lack a column, or rows
    may show that a job is due: the least start_ts of the pending jobs that do so. None: there is no such job."""
    starts = [
        job.start_ts
        for job in pending
        if job.type in _TAKES_KEYS and (_lost(job, catalog) or lost_columns(job, catalog) or guessed(job))
    ]
    return min(starts, default=None)


def lost_columns(job: Job, catalog: Catalog) -> frozenset[int]:
    """Ids of the columns that a job drops."""
    at = catalog.tables.get(job.table_id)
    if at is None or job.table_info is None or job.type not in _TAKES_COLUMNS:
        return frozenset()
    return frozenset(at.current.columns_by_id) - frozenset(job.table_info.columns_by_id)


def going_columns(pending: Iterable[Job], catalog: Catalog) -> frozenset[tuple[int, int]]:
    """(table id, column id) of everything that pending jobs drop."""
    return frozenset((job.table_id, column_id) for job in pending for column_id in lost_columns(job, catalog))


def unfolding(pending: Iterable[Job], catalog: Catalog) -> Job | None:
    """The pending job with the least start_ts that takes away a key by which rows may fold (rule 9). From its start
    on two rows may live under one such key, and a REPLACE would evict the one that the range does not touch: the job
    must run before the first row behind its start."""
    found = []
    tables: set[int] = set()
    for job in pending:
        first = job.table_id not in tables
        tables.add(job.table_id)
        if first and job.type in _BEFORE_ITS_START and _lost(job, catalog, fold_only=True):
            found.append(job)
    return min(found, key=lambda job: job.start_ts, default=None)


def job_that_drops(pending: Iterable[Job], catalog: Catalog, *, schema: str, table: str, key: str) -> Job | None:
    """The pending job that takes this unique key away. It may run before rows of older versions: they hold defaults in
    the columns that it adds, and are cast where it changes a type. None where there is none, or where another job of
    the table has to run before it."""
    for job in pending:
        at = catalog.tables.get(job.table_id)
        if at is None or (at.schema.lower(), at.name.lower()) != (schema.lower(), table.lower()):
            continue
        if job.type == ActionType.DROP_TABLE_PARTITION:
            return job  # a row whose key stands in the partition that goes
        return job if job.type in _TAKES_KEYS and key.lower() in _lost(job, catalog) else None
    return None


def _lost(job: Job, catalog: Catalog, *, fold_only: bool = False) -> frozenset[str]:
    at = catalog.tables.get(job.table_id)
    if at is None or job.table_info is None:
        return frozenset()
    return lost_keys(at.current, job.table_info, fold_only=fold_only)
