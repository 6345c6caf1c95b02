"""Kinds of DDLs with Canal's names, which Simple uses too."""

from __future__ import annotations

from typing import Final

from binlog.tidb.job import ActionType

_KINDS: Final = {
    "CREATE": (ActionType.CREATE_TABLE,),
    "RENAME": (ActionType.RENAME_TABLE, ActionType.RENAME_TABLES),
    "CINDEX": (ActionType.ADD_INDEX, ActionType.ADD_FOREIGN_KEY, ActionType.ADD_PRIMARY_KEY),
    "DINDEX": (ActionType.DROP_INDEX, ActionType.DROP_FOREIGN_KEY, ActionType.DROP_PRIMARY_KEY),
    "ERASE": (ActionType.DROP_TABLE,),
    "TRUNCATE": (ActionType.TRUNCATE_TABLE,),
    "ALTER": (
        ActionType.ADD_COLUMN,
        ActionType.DROP_COLUMN,
        ActionType.MODIFY_COLUMN,
        ActionType.REBASE_AUTO_ID,
        ActionType.SET_DEFAULT_VALUE,
        ActionType.MODIFY_TABLE_COMMENT,
        ActionType.RENAME_INDEX,
        ActionType.ADD_TABLE_PARTITION,
        ActionType.DROP_TABLE_PARTITION,
        ActionType.MODIFY_TABLE_CHARSET_AND_COLLATE,
        ActionType.TRUNCATE_TABLE_PARTITION,
        ActionType.ALTER_INDEX_VISIBILITY,
        ActionType.MULTI_SCHEMA_CHANGE,
        ActionType.REORGANIZE_PARTITION,
        ActionType.ALTER_TABLE_PARTITIONING,
        ActionType.REMOVE_PARTITIONING,
        ActionType.ADD_COLUMNS,
        ActionType.DROP_COLUMNS,
    ),
}
_TYPES: Final = {int(action): name for name, actions in _KINDS.items() for action in actions}


def canal_kind(type_code: int) -> str:
    """Return the name of a job's kind from its number. `QUERY` for a kind without a name."""
    return _TYPES.get(type_code, "QUERY")
