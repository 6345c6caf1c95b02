"""What decoders return: one object for each event in a message, with plain Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from binlog.tidb.job import ActionType

from drainer.protocol.table import ColumnFlag

# Kinds of DDLs with Canal's names, which Simple uses too.

KINDS: Final = {
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
_TYPES: Final = {int(action): name for name, actions in KINDS.items() for action in actions}


def canal_kind(type_code: int) -> str:
    """Return the name of a job's kind from its number. `QUERY` for a kind without a name."""
    return _TYPES.get(type_code, "QUERY")


# int, float, str (text, decimals, dates and times, JSON), bytes (binary strings), None. An ENUM or SET is its number if
# the protocol has numbers, else its names. A BIT is its number.
Value = int | float | str | bytes | None


def text_or_bytes(data: bytes) -> str | bytes:
    """Decode text. TiDB's latin1 columns may hold any bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class Change(StrEnum):
    """What happened to a row. UPSERT: an insert or an update, in protocols that do not distinguish them."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"


class ColumnValue(NamedTuple):
    """One column's value. `type_code`: the number of the MySQL type; `flags`: as in table.ColumnFlag; `type_name`: the
    name of the type. Each is 0 or "" if the protocol does not have it."""

    value: Value
    type_code: int = 0
    flags: int = 0
    type_name: str = ""


Image = Mapping[str, ColumnValue]
_HANDLE_KEY: Final = int(ColumnFlag.HANDLE_KEY)  # a number: the operators of an enum's members are slow


class RowEvent(NamedTuple):
    """The change of one row. `commit_ts`: 0 if the protocol does not say it (deletes in Avro). `old`: for updates, the
    old values that the protocol has, perhaps only those of changed columns. `key`: the columns of the message's key, if
    it has one. `handle_only`: the images have only the handle key, because the message would have been too large.
    `claim`: the location of the stored complete message, "" if there is none."""

    change: Change
    commit_ts: int
    schema: str
    table: str
    old: Image | None = None
    new: Image | None = None
    key: Image | None = None
    start_ts: int = 0
    row_id: int = 0
    partition_id: int = 0
    handle_only: bool = False
    claim: str = ""


def key_of(event: RowEvent) -> Image | None:
    """Return the columns that identify the row, None if its table has no key, or its protocol does not name one."""
    if event.key is not None:
        return event.key
    image = event.new if event.new is not None else event.old
    return {name: one for name, one in (image or {}).items() if one.flags & _HANDLE_KEY} or None


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A DDL. `type_code`: TiDB's number of the job's kind (binlog.tidb.job), 0 if the protocol does not have it.
    `number`: among the DDLs of one job, 0 if the protocol does not say it."""

    commit_ts: int
    schema: str
    table: str
    query: str
    type_code: int = 0
    start_ts: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class ResolvedEvent:
    """States that no later change in the partition has a commit_ts at or below this one."""

    commit_ts: int


@dataclass(frozen=True, slots=True)
class AdminEvent:
    """States that the topic has this many partitions from this message on. An extension of this project."""

    partitions: int
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class BootstrapEvent:
    """A table's schema, which the protocol Simple repeats for consumers that start in the middle of a topic."""

    schema: str
    table: str
    commit_ts: int


Event = RowEvent | DdlEvent | ResolvedEvent | AdminEvent | BootstrapEvent
