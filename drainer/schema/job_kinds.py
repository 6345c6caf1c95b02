"""Which DDL jobs matter, and to what. Tables of facts; no rules beyond membership."""

from __future__ import annotations

from typing import Final

from binlog.tidb.job import ActionType, Job

from drainer.schema.view import SYSTEM_TABLE_ID_MIN

# D-SC-03: nothing a row or a downstream table shows. CACHE and NOCACHE jobs have no binlog at all.
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

# What a job of these kinds takes away.
DROPS: Final = {
    ActionType.DROP_TABLE: "TABLE",
    ActionType.DROP_VIEW: "VIEW",
    ActionType.DROP_SEQUENCE: "SEQUENCE",
}

# They name no table: the name filter sees "" (D-FI-02).
ON_SCHEMA: Final = frozenset(
    {
        ActionType.CREATE_SCHEMA,
        ActionType.DROP_SCHEMA,
        ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE,
        ActionType.RECOVER_SCHEMA,
    }
)

# They name neither a database nor a table.
ON_CLUSTER: Final = frozenset({ActionType.FLASHBACK_CLUSTER})

# Run without a current database: it is not there yet, or goes.
WITHOUT_DATABASE: Final = (ON_SCHEMA - {ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE}) | ON_CLUSTER


def takes_effect(job: Job) -> bool:
    """Whether a job changed anything upstream: finished, not rolled back, not on TiDB's own DDL tables (D-SC-07).

    Failed jobs have state 3 and still a version (X-07); version 0 is a job refused before it began.
    """
    return job.took_effect and job.schema_version > 0 and job.table_id < SYSTEM_TABLE_ID_MIN


def is_skipped(job: Job) -> bool:
    return job.type in SKIPPED
