"""The interface of a message format. Each folder beside this module has one, made by drainer.protocol.registry.

    encoder.table(table)                   compiled once for each version of a table
        .encode_columns(changes)           one key and value for each row
    encoder.frame_columns(parts, chosen)   messages from the rows of one partition, in its order
    encoder.ddl / resolved / ...           the other events; `ddl_scope` says how many partitions get a DDL

Encoders can be pickled. What they have compiled is not pickled with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from drainer.changes.vector import Ints
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Event
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table

if TYPE_CHECKING:
    from drainer.protocol.encoded_columns import EncodedColumns
    from drainer.protocol.row_messages import TableEncoder


# Subject → fingerprint of the schema's text → its id.
SchemaIds = Mapping[str, Mapping[str, int]]


class RequiredSchema(NamedTuple):
    """A schema that must be registered before messages that use it are written."""

    subject: str
    schema: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.schema)


def fingerprint(schema: str) -> str:
    """Return a hash of the exact text: schemas that differ in a default or a parameter are different schemas."""
    return sha256(schema.encode()).hexdigest()


def merged(ids: SchemaIds, more: Iterable[tuple[RequiredSchema, int]]) -> SchemaIds:
    """Return a new mapping with the ids of both."""
    found = {subject: dict(of_subject) for subject, of_subject in ids.items()}
    for required, schema_id in more:
        found.setdefault(required.subject, {})[required.fingerprint] = schema_id
    return found


# The header in front of a record of Avro: the id of the schema with which it was written, in Confluent's format.

HEADER_BYTES: Final = 5
_ID_MAX: Final = 0x7FFF_FFFF


def header_of(schema_id: int) -> bytes:
    """Return the header of a record. Raises ValueError for an id that is not from 1 to 2147483647."""
    if not 0 < schema_id <= _ID_MAX:
        raise ValueError(f"{schema_id} is not the id of a schema")
    return b"\0" + schema_id.to_bytes(4, "big")


def read_header(data: bytes) -> int:
    """Return the id of the schema. Raises MessageError."""
    if len(data) < HEADER_BYTES:
        raise MessageError(f"Avro: a header has {HEADER_BYTES} bytes, and the message {len(data)}")
    if data[0]:
        raise MessageError(f"Avro: no header begins with the byte {data[0]:#04x}")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


# A cache of what an encoder has compiled for each version of a table.

T = TypeVar("T")

# The most entries. When the cache is full, it is emptied.
TABLES_MAX: Final = 4096


class CompiledTables(Generic[T]):
    """Caches compiled tables by `Table.key`, or a key that contains it. It is not pickled: a pickled cache is restored
    empty."""

    def __init__(self) -> None:
        self._made: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of this key. Calls `make` if there is none yet."""
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= TABLES_MAX:
                self._made.clear()
            found = self._made[key] = make()
        return found

    def __reduce__(self) -> tuple[type[CompiledTables[T]], tuple[()]]:
        return CompiledTables, ()


# Bytes that the producer library adds for a record to the length of its key and value.
RECORD_OVERHEAD = 36


class DdlScope(Enum):
    """The partitions of a topic that get a DDL."""

    ALL_PARTITIONS = "all"
    FIRST_PARTITION = "first"
    NONE = "none"


class Message(NamedTuple):
    """One Kafka record. `rows`: the number of row changes in it. `commit_ts`: of the last row change, or of the
    event."""

    key: bytes | None
    value: bytes | None
    rows: int
    commit_ts: int

    @property
    def length(self) -> int:
        """Return the length in bytes, as the limits count it."""
        return len(self.key or b"") + len(self.value or b"") + RECORD_OVERHEAD


@dataclass(frozen=True, slots=True)
class Ddl:
    """One DDL of one table or database. `table`: "" for a DDL of a database. `before` and `after`: the table before and
    after the DDL, None if it does not exist or is not known. `type_code`: TiDB's number of the job's kind."""

    commit_ts: int
    start_ts: int
    schema: str
    table: str
    query: str
    type_code: int
    before: Table | None = None
    after: Table | None = None


class Encoder(ABC):
    """One protocol with its options.

    `name`: in TiCDC's `protocol` option. `ddl_scope`: which partitions get a DDL. `joins_transactions`: all rows of a
    transaction are joined in one message, so a row whose transaction has other rows in its partition must be encoded by
    `TableEncoder.encode_joinable`. `table_class`: encodes rows of one version of a table.

    `registers`: messages contain the ids of registered schemas. The driver registers the schemas that
    `required_schemas` returns and adds their ids to the encoders before it sends these to the executors. If an id is
    missing, `TableEncoder.encode` raises SchemaIdMissing."""

    name: ClassVar[str]
    ddl_scope = DdlScope.ALL_PARTITIONS
    joins_transactions = False
    registers = False
    table_class: type[TableEncoder]

    def __init__(self, options: ProtocolOptions) -> None:
        self.options = options
        self._tables: CompiledTables[TableEncoder] = CompiledTables()

    def table(self, table: Table, topic: str = "") -> TableEncoder:
        """Return the encoder of a table's rows that go to `topic`."""
        return self._tables.get(table.key, lambda: self.table_class(table, self.options))

    @abstractmethod
    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterable[Message]:
        """Frame rows into messages within the limits of a batch. `chosen`: positions in the concatenation of all
        parts, at least one. A single row above the limit becomes a message of its own: the sender must compare its
        `length` (drainer.protocol.large)."""

    @abstractmethod
    def ddl(self, ddl: Ddl) -> list[Message]:
        """Return the messages that every partition of `ddl_scope` gets, in this order. Empty if the protocol has no
        such message."""

    def resolved(self, commit_ts: int) -> list[Message]:
        """Return the messages that every partition gets. Empty if the protocol has none."""
        return []

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        """Return a table's schema for readers that begin at this position. Empty if the protocol has no such
        message."""
        return []

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        """Return an AdminEvent for every partition. Empty if the protocol has no such message."""
        return []

    def required_schemas(self, topic: str, table: Table) -> Sequence[RequiredSchema]:
        return ()

    def with_ids(self, ids: SchemaIds) -> Encoder:
        """Return a copy of the encoder with these ids in place of its own."""
        return self


class Decoder(Protocol):
    """Reads the messages of one partition, in order: some protocols send a table's schema only once."""

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """Return the events of one record, in order. Raises MessageError; then no event of the record may be used."""
        ...
