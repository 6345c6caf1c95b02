"""Classification of DDL job types."""

from __future__ import annotations

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
