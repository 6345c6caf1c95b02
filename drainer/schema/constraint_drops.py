"""Unique keys that TiDB no longer enforces because a running job drops them (correctness rule 12). Pure.

TiDB stops enforcing a unique key some schema versions before the job's own, so rows of those versions may hold a value
twice while the destination still has the key. The pipeline therefore distributes no batch from the job's start_ts on,
and runs the job that drops a key early where the key refuses a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import IndexInfo, TableInfo

from drainer.schema.catalog import Catalog
from drainer.schema.unknown_column import guessed

_DROPS_KEYS = frozenset(
    {
        ActionType.DROP_INDEX,
        ActionType.DROP_INDEXES,
        ActionType.DROP_PRIMARY_KEY,
        ActionType.DROP_COLUMN,
        ActionType.DROP_COLUMNS,
        ActionType.MULTI_SCHEMA_CHANGE,
    }
)
_DROPS_COLUMNS = frozenset({ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS, ActionType.MULTI_SCHEMA_CHANGE})
# These may run before older rows: a dropped column is only left out of them. A statement of several changes runs before
# every row of a version in which its keys are not enforced anyway (unknown_column.public_version).
_MAY_RUN_EARLY = _DROPS_KEYS - {ActionType.MULTI_SCHEMA_CHANGE}


def dropped_keys(before: TableInfo, after: TableInfo, *, fold_only: bool = False) -> frozenset[str]:
    """Lower-case names of the unique keys that only `before` has. `fold_only`: without nullable keys. A renamed key
    keeps its id, and a key that is rebuilt for a changed column keeps its name."""
    names = {index.name.lower() for index in after.unique_indexes()}
    ids = {index.id for index in after.unique_indexes()} - {0}
    keys = (index for index in before.unique_indexes() if not fold_only or _never_null(before, index))
    return frozenset(index.name.lower() for index in keys if index.id not in ids) - names


def _never_null(table: TableInfo, index: IndexInfo) -> bool:
    return index.primary or all(column.is_not_null for column in table.index_columns(index))


def unenforced_from(pending: Iterable[Job], catalog: Catalog) -> int | None:
    """The least start_ts of the pending jobs from whose start TiDB may not enforce a unique key of the catalog, updates
    may lack a column, or the version in which rows need the job is not recorded. None: there is no such job."""
    starts = [
        job.start_ts
        for job in pending
        if (job.type in _DROPS_KEYS and (_dropped_keys_of(job, catalog) or lost_columns(job, catalog) or guessed(job)))
        or _frees_values(job, catalog)
    ]
    return min(starts, default=None)


def _frees_values(job: Job, catalog: Catalog) -> bool:
    """Whether a job drops a partition of a table with a unique key beside the primary key: rows that are written before
    the DDL's binlog may have the values of rows in that partition."""
    at = catalog.tables.get(job.table_id) if job.type == ActionType.DROP_TABLE_PARTITION else None
    return at is not None and any(not index.primary for index in at.current.unique_indexes())


def lost_columns(job: Job, catalog: Catalog) -> frozenset[int]:
    """Ids of the columns of the catalog's table that a job drops."""
    at = catalog.tables.get(job.table_id)
    if at is None or job.table_info is None or job.type not in _DROPS_COLUMNS:
        return frozenset()
    return frozenset(at.current.columns_by_id) - frozenset(job.table_info.columns_by_id)


def columns_being_dropped(pending: Iterable[Job], catalog: Catalog) -> frozenset[tuple[int, int]]:
    """(table id, column id) of every column that pending jobs drop."""
    return frozenset((job.table_id, column_id) for job in pending for column_id in lost_columns(job, catalog))


def fold_key_drop(pending: Iterable[Job], catalog: Catalog) -> Job | None:
    """The pending job with the least start_ts that drops a key usable as fold key (rule 9). From its start on two rows
    may have the same key value, and a REPLACE would delete the one that the batch does not write: the job must run
    before the first row after its start_ts."""
    found = []
    tables: set[int] = set()
    for job in pending:
        first = job.table_id not in tables
        tables.add(job.table_id)
        if first and job.type in _MAY_RUN_EARLY and _dropped_keys_of(job, catalog, fold_only=True):
            found.append(job)
    return min(found, key=lambda job: job.start_ts, default=None)


def job_that_drops(pending: Iterable[Job], catalog: Catalog, *, schema: str, table: str, key: str) -> Job | None:
    """The pending job that drops this unique key. It may run before rows of older versions: they get defaults in the
    columns that it adds, and are cast where it changes a type. None where there is no such job, or where another job
    of the table has to run before it."""
    for job in pending:
        at = catalog.tables.get(job.table_id)
        if at is None or (at.schema.lower(), at.name.lower()) != (schema.lower(), table.lower()):
            continue
        if job.type == ActionType.DROP_TABLE_PARTITION:
            return job  # the conflicting key may be in a partition that the job drops
        return job if job.type in _DROPS_KEYS and key.lower() in _dropped_keys_of(job, catalog) else None
    return None


def _dropped_keys_of(job: Job, catalog: Catalog, *, fold_only: bool = False) -> frozenset[str]:
    at = catalog.tables.get(job.table_id)
    if at is None or job.table_info is None:
        return frozenset()
    return dropped_keys(at.current, job.table_info, fold_only=fold_only)
