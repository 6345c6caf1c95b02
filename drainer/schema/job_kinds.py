"""Kinds of DDL jobs, and the schema versions in which jobs make columns public, as far as they are recorded. Pure.

These versions decide what is done with a row that has a column id in no known TableInfo
(SchemaProvider.resolve_column): the column is skipped, the row waits, or a DDL runs first.

A status port does not list a job before it has finished. A row with an unknown column id therefore belongs either to a
running DDL (the column is not public yet: it holds its default, which the DDL will fill in downstream as well), or to
one that has just finished and is not listed yet: then skipping the column would lose what a user wrote, as the Go
drainer does. A drainer with a backlog may read such rows when the job is already known; then the job's version decides.

A statement with several changes makes all its added and modified columns public in one schema version and removes its
dropped ones in later ones; only the last of these is the job's. Rows in between hold user values in the new columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from binlog.tidb.job import ActionType, Job

from drainer.schema.view import SYSTEM_TABLE_ID_MIN

# D-SC-03: jobs without an effect on rows or downstream tables. CACHE and NOCACHE jobs have no binlog at all.
SKIPPED: Final = frozenset(
    {
        ActionType.LOCK_TABLE,
        ActionType.UNLOCK_TABLE,
        ActionType.UPDATE_TIFLASH_REPLICA_STATUS,
        ActionType.ALTER_TABLE_ATTRIBUTES,
        ActionType.ALTER_TABLE_PARTITION_ATTRIBUTES,
        ActionType.CREATE_PLACEMENT_POLICY,
        ActionType.ALTER_PLACEMENT_POLICY,
        ActionType.DROP_PLACEMENT_POLICY,
        ActionType.ALTER_TABLE_PARTITION_PLACEMENT,
        ActionType.MODIFY_SCHEMA_DEFAULT_PLACEMENT,
        ActionType.ALTER_TABLE_PLACEMENT,
        ActionType.ALTER_CACHE_TABLE,
        ActionType.ALTER_NO_CACHE_TABLE,
        ActionType.CREATE_RESOURCE_GROUP,
        ActionType.ALTER_RESOURCE_GROUP,
        ActionType.DROP_RESOURCE_GROUP,
    }
)

# Object type in the DROP statement of a job.
DROPS: Final = {
    ActionType.DROP_TABLE: "TABLE",
    ActionType.DROP_VIEW: "VIEW",
    ActionType.DROP_SEQUENCE: "SEQUENCE",
}

CREATES: Final = frozenset({ActionType.CREATE_TABLE, ActionType.CREATE_TABLES})
RENAMES: Final = frozenset({ActionType.RENAME_TABLE, ActionType.RENAME_TABLES})
DATABASES: Final = frozenset({ActionType.CREATE_SCHEMA, ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE})

REMOVES_PARTITIONS: Final = frozenset({ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION})
# Jobs after which rows of a partition are no longer the table's.
TAKES_PARTITIONS: Final = REMOVES_PARTITIONS | {ActionType.EXCHANGE_TABLE_PARTITION}

# Jobs on a database; the name filter gets table "".
ON_SCHEMA: Final = frozenset(
    {
        ActionType.CREATE_SCHEMA,
        ActionType.DROP_SCHEMA,
        ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE,
        ActionType.RECOVER_SCHEMA,
    }
)

# Jobs that name neither a database nor a table.
ON_CLUSTER: Final = frozenset({ActionType.FLASHBACK_CLUSTER})

# Jobs that run without a current database, because it does not exist yet or is dropped.
WITHOUT_DATABASE: Final = (ON_SCHEMA - {ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE}) | ON_CLUSTER


def takes_effect(job: Job) -> bool:
    """Whether a job changed the schema upstream: finished, not rolled back, and not on TiDB's own DDL tables (D-SC-07);
    and whether its kind has an effect here (SKIPPED).

    A failed job has state 3 and a schema version too; version 0 is a job that was refused before it began.
    """
    is_known = job.table_id < SYSTEM_TABLE_ID_MIN and job.type not in SKIPPED
    return job.took_effect and job.schema_version > 0 and is_known


REMOVALS = frozenset(
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


def guessed(job: Job) -> bool:
    """Whether the schema version in which the job's added columns become public is not recorded in it."""
    if job.type != ActionType.MULTI_SCHEMA_CHANGE:
        return False
    return any(kind in REMOVALS for kind, _ in _parts(job)) and not _recorded(job)


def _recorded(job: Job) -> int:
    return max((version for kind, version in _parts(job) if kind not in REMOVALS), default=0)


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
    dropped = [version for kind, version in parts if kind in REMOVALS and version]
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
