"""What a message format is asked for. Each folder beside this has one, made by drainer.protocol.registry.

    encoder.table(table)           compiled once for each version of a table
        .encode(changes)           one key and value for each row
    encoder.frame(rows)            rows of one partition, in its order, to messages
    encoder.ddl / resolved / ...   the other events; how many partitions get them is `ddl_scope`

Encoders are picklable as they are made; what they compile stays in the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from drainer.protocol.event import Event
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.schema_ids import RequiredSchema, SchemaIds
from drainer.protocol.table import Table

# What the producer library counts for a record beside its key and value.
RECORD_OVERHEAD = 36


class DdlScope(Enum):
    """Which partitions of its topics a DDL goes to."""

    ALL_PARTITIONS = "all"
    FIRST_PARTITION = "first"
    NONE = "none"


class EncodedRow(NamedTuple):
    """One row's part of a message, before framing. `value` None: a tombstone, where the protocol has such."""

    key: bytes | None
    value: bytes | None
    commit_ts: int


class Message(NamedTuple):
    """One Kafka record. `rows`: how many row changes are in it; `commit_ts`: of the last of them, or of the event."""

    key: bytes | None
    value: bytes | None
    rows: int
    commit_ts: int

    @property
    def length(self) -> int:
        """As the limits count it."""
        return len(self.key or b"") + len(self.value or b"") + RECORD_OVERHEAD


@dataclass(frozen=True, slots=True)
class Ddl:
    """One DDL of one table or database, as messages have it. `table` "": of a database. `before` and `after`: the table
    before and behind it, None where there is none or it is not known; `type_code`: TiDB's number of the kind of job."""

    commit_ts: int
    start_ts: int
    schema: str
    table: str
    query: str
    type_code: int
    before: Table | None = None
    after: Table | None = None
    job_id: int = 0


class TableEncoder(Protocol):
    """Rows of one version of a table. Keeps what it has made; not for several threads."""

    def encode(self, changes: RowChanges) -> list[EncodedRow]:
        """One for each row, in the order of `changes`. Raises EncodeError naming table, column and commit_ts."""
        ...

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
        """The same with the handle key's columns alone, for rows whose messages are too large; `claims`: where each
        whole message lies (claim check), None: nowhere. Raises EncodeError where the table has no handle key, or the
        protocol has no such messages."""
        ...


class Encoder(Protocol):
    """One protocol with its options."""

    @property
    def name(self) -> str:
        """As TiCDC's `protocol` option has it."""
        ...

    @property
    def ddl_scope(self) -> DdlScope: ...

    def table(self, table: Table) -> TableEncoder: ...

    def frame(self, rows: Iterable[EncodedRow]) -> Iterator[Message]:
        """Messages of at most the batch's limits. A single row above the limit is a message of its own: who sends it
        compares its `length` (drainer.protocol.large)."""
        ...

    def ddl(self, ddl: Ddl) -> list[Message]:
        """What every partition of `ddl_scope` gets, in this order; empty where the protocol has no such message."""
        ...

    def resolved(self, commit_ts: int) -> list[Message]:
        """What every partition gets; empty where the protocol has none."""
        ...

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        """A table's schema for readers that begin here; empty where the protocol has none."""
        ...

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        """An AdminEvent for every partition; empty where the protocol has none."""
        ...


@runtime_checkable
class RegisteringEncoder(Protocol):
    """An Encoder whose messages have ids of schemas in them. The driver registers what `required_schemas` says, and
    gives the ids to the encoders that travel; where one is missing, `TableEncoder.encode` raises SchemaIdMissing."""

    def required_schemas(self, topic: str, table: Table) -> Sequence[RequiredSchema]: ...

    def with_ids(self, ids: SchemaIds) -> Encoder:
        """The same with these ids."""
        ...

    def in_topic(self, topic: str) -> Encoder:
        """The same for tables of this topic: the names under which schemas are registered may have its name."""
        ...


def table_encoder(encoder: Encoder, topic: str, table: Table) -> TableEncoder:
    """Of any protocol, for rows that go to `topic`."""
    return (encoder.in_topic(topic) if isinstance(encoder, RegisteringEncoder) else encoder).table(table)


class Decoder(Protocol):
    """Reads messages of one partition, in order: some protocols say a table's schema once."""

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """The events of one record, in order. Raises MessageError; then none of them counts."""
        ...
