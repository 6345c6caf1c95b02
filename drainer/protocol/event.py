"""What decoders give: one value for each event in a message, with plain Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# int, float, str (text, decimals, dates and times, JSON), bytes (binary strings), None. An ENUM or SET is its number
# where the protocol has numbers, else its names; a BIT is its number.
Value = int | float | str | bytes | None


class Change(StrEnum):
    """What happened to a row. UPSERT: the protocol does not tell inserts from updates."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """`type_code`: the MySQL type number, 0 where the protocol has none; `flags`: those of table.ColumnFlag, likewise;
    `type_name`: the type's name, "" likewise."""

    value: Value
    type_code: int = 0
    flags: int = 0
    type_name: str = ""


Image = Mapping[str, ColumnValue]


@dataclass(frozen=True, slots=True)
class RowEvent:
    """`commit_ts` is 0 where the protocol does not say it (deletes in Avro). `old`: of updates what the protocol has
    of it, perhaps only the columns that changed. `key`: the columns of the message's own key, where it has one.
    `handle_only`: the images hold handle keys alone, since the message would have been too large; `claim`: where the
    whole message lies, "" where it is here."""

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


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """`type_code`: TiDB's number of the kind of job (binlog.tidb.job), 0 where the protocol has none; `extra`: what
    else the protocol says, under its own names."""

    commit_ts: int
    schema: str
    table: str
    query: str
    type_code: int = 0
    start_ts: int = 0
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedEvent:
    """No change with a commit_ts at or below this follows in the partition."""

    commit_ts: int


@dataclass(frozen=True, slots=True)
class AdminEvent:
    """The topic has this many partitions from here on; an extension of ours."""

    partitions: int
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class BootstrapEvent:
    """A table's schema, sent again for readers that begin here (Simple). `document`: the message as it is."""

    schema: str
    table: str
    commit_ts: int
    document: Mapping[str, object] = field(default_factory=dict)


Event = RowEvent | DdlEvent | ResolvedEvent | AdminEvent | BootstrapEvent
