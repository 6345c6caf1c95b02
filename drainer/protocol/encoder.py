"""The interface of a message format. Each protocol beside this module has one, made by drainer.protocol.registry.

    encoder.table(table)                   compiled once for each version of a table
        .encode_columns(changes)           one key and value for each row
    encoder.frame_columns(parts, chosen)   messages from the rows of one partition, in its order
    encoder.ddl / resolved / ...           the other events; `ddl_scope` says how many partitions get a DDL

Encoders can be pickled. What they have compiled is not pickled with them.

Encoded rows are Arrow columns: keys and values of many rows stay in Arrow buffers, and a message of many rows is a
slice of them. No Python object is created for a single row. Values may be compressed as TiCDC does it. A message does
not say how: writer and reader must be configured alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from enum import Enum
from hashlib import sha256
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import cramjam
import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Kind
from drainer.changes.vector import Ints, Words
from drainer.protocol.errors import EncodeError, MessageError
from drainer.protocol.event import Event
from drainer.protocol.json_text import (
    Fragment,
    Parts,
    Rows,
    Slot,
    fragments_of,
    joined,
    json_string,
    numbers,
    old_fragments,
    plain_double,
    text,
    utf8_text,
)
from drainer.protocol.registry import Compression, ProtocolOptions
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import ColumnType, TypeClass

# The longest value in bytes after decompression. TiDB's transactions are much smaller, so a value with a larger length
# is damaged.
LENGTH_MAX: Final = 1 << 30


def compress(data: bytes, how: Compression) -> bytes:
    if how == "snappy":  # the raw block format, not the framing format
        return bytes(cramjam.snappy.compress_raw(data))
    if how == "lz4":
        # One frame of independent blocks with a checksum of the content, as pierrec/lz4 writes by default.
        made: bytes = lz4.frame.compress(
            data,
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
            block_linked=False,
            content_checksum=True,
            store_size=False,
        )
        return made
    return data


def decompress(data: bytes, how: Compression) -> bytes:
    """Decompress a value. Raises MessageError."""
    try:
        if how == "snappy":
            if cramjam.snappy.decompress_raw_len(data) > LENGTH_MAX:
                raise ValueError(f"more than {LENGTH_MAX:,} bytes")
            return bytes(cramjam.snappy.decompress_raw(data))
        if how == "lz4":
            reader = lz4.frame.LZ4FrameDecompressor()
            found: bytes = reader.decompress(data, max_length=LENGTH_MAX)
            if not reader.eof or reader.unused_data:
                raise ValueError("no complete frame, or bytes follow it")
            return found
    except (RuntimeError, ValueError, EOFError, MemoryError, OverflowError, cramjam.DecompressionError) as error:
        raise MessageError(f"a value of {len(data):,} bytes cannot be decompressed as {how}: {error}") from None
    return data


class EncodedColumns(NamedTuple):
    """Many encoded rows: each row's part of a message, before framing. `keys` and `values`: large_binary arrays, whose
    offsets have 64 bits, because the rows of a batch may have more than 2 GiB together; NULL where a row has no key or,
    as a tombstone, no value. `commit_ts`: an array of the same length. `around`: what stands
    once in front of and behind the values of all rows of a message (TableEncoder.encode_joinable)."""

    keys: Any
    values: Any
    commit_ts: Words
    around: tuple[bytes, bytes] | None = None

    def lengths(self) -> Ints:
        """Return the length of each row's message, in bytes, counted as in Message.length, without framing."""
        found = np.full(len(self.commit_ts), RECORD_OVERHEAD + sum(map(len, self.around or ())))
        for column in (self.keys, self.values):
            if column.null_count < len(column):
                lengths = pc.binary_length(column)
                found += (pc.fill_null(lengths, 0) if column.null_count else lengths).to_numpy()
        return found

    def take(self, chosen: Ints) -> EncodedColumns:
        """Return the rows at the positions `chosen`, in that order. Copies nothing if the positions are consecutive."""
        first, last = (int(chosen[0]), int(chosen[-1])) if len(chosen) else (0, -1)
        if last - first == len(chosen) - 1 and bool((np.diff(chosen) == 1).all()):
            return self.slice(first, last + 1)
        indexes = pa.array(chosen)
        return self._part(self.keys.take(indexes), self.values.take(indexes), self.commit_ts[chosen])

    def slice(self, begin: int, end: int) -> EncodedColumns:
        """Return the rows from position `begin` up to, but not including, `end`. Copies nothing."""
        return self._part(self.keys[begin:end], self.values[begin:end], self.commit_ts[begin:end])

    def _part(self, keys: Any, values: Any, commit_ts: Words) -> EncodedColumns:
        return EncodedColumns(keys, values, commit_ts, self.around)


def null_column(count: int) -> Any:
    """Return a column of `count` NULLs: the keys or values of rows that have none."""
    return pa.nulls(count, pa.large_binary())


def compressed(column: Any, how: Compression) -> Any:
    """Compress each value of a column (see compress)."""
    if how == "none":
        return column
    return pa.array([compress(value, how) for value in column.to_pylist()], pa.large_binary())


def concatenated(parts: Sequence[EncodedColumns]) -> EncodedColumns:
    """Concatenate the parts, of which there must be at least one, all with the same `around`."""
    keys, values, stamps, around = zip(*parts, strict=True)
    return EncodedColumns(pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(stamps), around[0])


def take_parts(parts: Sequence[EncodedColumns], chosen: Ints) -> tuple[list[EncodedColumns], Ints | None]:
    """Take rows from several parts. `chosen`: positions in the concatenation of all parts, at least one.

    Return the chosen rows of each part that has any, and, for each entry of `chosen`, its position in the concatenation
    of the returned parts. The positions are None if the returned rows already have the order of `chosen`.
    """
    if len(parts) == 1:
        return [parts[0].take(chosen)], None
    begins = np.cumsum([0, *(len(part.commit_ts) for part in parts)])
    of = np.searchsorted(begins, chosen, side="right") - 1
    numbers: list[int] = np.flatnonzero(np.bincount(of)).tolist()
    found = [parts[number].take(chosen[of == number] - begins[number]) for number in numbers]
    if len(found) == 1:
        return found, None
    back = np.empty(len(chosen), np.int64)
    back[np.argsort(of, kind="stable")] = np.arange(len(chosen))
    return found, back


def take_rows(parts: Sequence[EncodedColumns], chosen: Ints) -> EncodedColumns:
    """Take rows from several parts and concatenate them. `chosen`: positions in the concatenation of all parts, at
    least one; the rows are returned in this order. Only chosen rows are copied: all parts together are larger than
    anything else that a task holds in memory."""
    found, back = take_parts(parts, chosen)
    return found[0] if back is None else concatenated(found).take(back)


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
    """Caches compiled tables by `Table.key`, or a key that contains it. A pickled cache is restored empty."""

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
    """One Kafka record. `rows`: how many row changes it has. `commit_ts`: of the last of them, or of the event."""

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
        """Return the messages that every partition of `ddl_scope` gets, in order. Empty if the protocol has none."""

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


# The most messages, and bytes, that iteration converts to Python objects at a time.
_STEP_MESSAGES: Final = 1000
_STEP_BYTES: Final = 1 << 20


class Chunk(NamedTuple):
    """Keys and values of consecutive messages. `bytes`: their total length, counted as in Message.length. `keys`: None
    if no message has a key."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    bytes: int


class RowMessages:
    """The messages of the rows at the positions `chosen` in the concatenation of all parts, at least one row. Can be
    iterated any number of times."""

    def __init__(self, parts: Sequence[EncodedColumns], chosen: Ints) -> None:
        self._parts, self._chosen = parts, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[Message]:
        stamps = np.concatenate([part.commit_ts for part in self._parts])[self._chosen].tolist()
        at = 0
        for keys, values, _ in self.chunks(_STEP_MESSAGES, _STEP_BYTES):
            for key, value in zip(keys or [None] * len(values), values, strict=True):
                yield Message(key, value, 1, stamps[at])
                at += 1

    def chunks(self, messages: int, size: int) -> Iterator[Chunk]:
        """Yield chunks of at most `messages` messages. A chunk ends at the first message with which it has `size` bytes
        or more."""
        parts, back = take_parts(self._parts, self._chosen)
        lengths = np.concatenate([part.lengths() for part in parts])
        ends = np.cumsum(lengths if back is None else lengths[back])
        begin = before = 0
        while begin < len(ends):
            end = min(int(np.searchsorted(ends, before + size)) + 1, begin + messages, len(ends))
            some, order = parts, back
            if end - begin < len(ends):
                some, order = take_parts(parts, np.arange(begin, end) if back is None else back[begin:end])
            yield _chunk(some, order, int(ends[end - 1]) - before)
            begin, before = end, int(ends[end - 1])


def _chunk(parts: Sequence[EncodedColumns], chosen: Ints | None, size: int) -> Chunk:
    order = None if chosen is None else chosen.tolist()
    has_keys = any(part.keys.null_count < len(part.commit_ts) for part in parts)
    keys = _values([part.keys for part in parts], order) if has_keys else None
    return Chunk(keys, _values([part.values for part in parts], order), size)


def _values(columns: Sequence[Any], order: Sequence[int] | None) -> list[bytes | None]:
    """Return the values of all columns, concatenated and then in the order of the indexes `order`."""
    if order is None:
        found: list[bytes | None] = columns[0].to_pylist()
        return found
    each = [value for column in columns for value in column.to_pylist()]
    return [each[at] for at in order]


# What the protocols with one row for each message share.


class OneRowMessages(Encoder):
    """The base class of such encoders."""

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterable[Message]:
        return RowMessages(parts, chosen)


class TableEncoder(ABC):
    """Encodes rows of one version of a table. Keeps what it has compiled. Not safe for use by several threads.

    `BY_NAME`: messages have columns in the order of the bytes of their names, as Go orders the keys of maps. `_all`:
    the positions of all columns, in the order of messages."""

    BY_NAME = False

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        self._table = table
        self._compression = options.large_message_handle_compression
        indexes = range(len(table.columns))
        self._all = tuple(sorted(indexes, key=lambda index: table.columns[index].name) if self.BY_NAME else indexes)

    @abstractmethod
    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """Encode each row, in order, as consecutive parts. Raises EncodeError naming table, column and commit_ts."""

    def encode_joinable(self, changes: RowChanges) -> list[EncodedColumns]:
        """Encode rows whose transactions may have other rows in their partition; see Encoder.joins_transactions."""
        raise NotImplementedError

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedColumns]:
        """Encode the columns of the handle key alone, for rows whose messages are too large. `claims`: the location of
        each stored complete message (claim check); None if the messages are not stored. Raises EncodeError if the table
        has no handle key. registry.check refuses the options that need it for protocols without such messages."""
        raise NotImplementedError

    def _handle(self, changes: RowChanges) -> tuple[int, ...]:
        """Return the columns of the handle key. Raises EncodeError if the table has none."""
        handle = self._table.handle
        if not handle:
            commit, kind = int(changes.commit_ts[0]) if len(changes) else 0, changes.kind.name.lower()
            raise EncodeError(
                f"`{self._table.schema}`.`{self._table.name}` has no handle key, so the {kind} at commit_ts {commit} "
                f"cannot be sent with it alone: not found handle key columns for the {kind} event"  # TiCDC's words
            )
        return tuple(index for index in self._all if index in handle) if self.BY_NAME else handle


class DocumentTable(TableEncoder):
    """A compiled table: one JSON document for each kind of change, with all columns or with only the handle key's.
    Columns of `Rows.build`: what `_before_image` returns (the time, the commit_ts, the claim), the new image (for
    deletes the old one), and what `_behind_image` returns. `fragment`: returns that of a column. `mark`: "handle" or
    "claim" if the message has only the handle key, else what an encoder tells its documents apart by. `_has_old`:
    updates have the old image."""

    TIME: Final = Slot(0)
    COMMIT: Final = Slot(1)
    CLAIM: Final = Slot(2)
    FIRST_VALUE = 3
    _has_old = True

    def __init__(self, table: Table, options: ProtocolOptions, fragment: Callable[[ColumnType], Fragment]) -> None:
        super().__init__(table, options)
        self._values = [fragment(column.column_type) for column in table.columns]
        self._names = [json_string(column.name) for column in table.columns]
        self._documents: dict[tuple[Kind, tuple[int, ...], str], Rows] = {}

    def _encode(
        self, changes: RowChanges, column_indexes: tuple[int, ...], mark: str = "", claims: Sequence[str] | None = None
    ) -> list[EncodedColumns]:
        if not len(changes):
            return []
        image = fragments_of(changes, changes.image, self._values, column_indexes)
        before, behind = self._before_image(changes, claims), self._behind_image(changes, column_indexes, image)
        key = changes.kind, column_indexes, mark
        document = self._documents.get(key)
        if document is None:
            document = self._documents[key] = Rows(self._parts(*key))
        documents = compressed(document.build([*before, *image, *behind]), self._compression)
        return [EncodedColumns(self._keys(changes, image, mark, claims), documents, changes.commit_ts)]

    def _keys(self, changes: RowChanges, image: list[Any], mark: str, claims: Sequence[str] | None) -> Any:
        return null_column(len(changes))

    def _before_image(self, changes: RowChanges, claims: Sequence[str] | None) -> list[Any]:
        return [
            numbers(changes.commit_ts >> np.uint64(18)),
            numbers(changes.commit_ts),
            pa.array([json_string(claim).encode() for claim in claims or ()], pa.binary()),
        ]

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedColumns]:
        mark = "handle" if claims is None else "claim"
        return self._encode(changes, self._handle(changes), mark, claims)

    def _members(self, column_indexes: tuple[int, ...], first: int) -> Parts:
        """Return the JSON members of a row image: names and slots. `first`: the slot of the first column's value."""
        return joined([self._member(index, first + n) for n, index in enumerate(column_indexes)])

    def _member(self, index: int, slot: int) -> Parts:
        """Return the name and the value of the column at `index`."""
        return [f"{self._names[index]}:", Slot(slot, quoted=True)]

    def _behind_image(self, changes: RowChanges, column_indexes: tuple[int, ...], image: list[Any]) -> list[Any]:
        """Return the columns that follow those of the image: of an update, its old image."""
        has_old = changes.kind is Kind.UPDATE and self._has_old
        return old_fragments(changes, self._values, column_indexes, image) if has_old else []

    @abstractmethod
    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        """Return the parts of a document."""


def value_of(column_type: ColumnType, zone: tzinfo, binary: Fragment) -> Fragment:
    """Return the fragment of a column: ENUM, SET and BIT are numbers. `binary`: that of binary strings."""
    if column_type.type_class is TypeClass.FLOAT:
        return plain_double(column_type)
    if column_type.type_class is TypeClass.TEXT:
        return utf8_text
    return binary if column_type.type_class is TypeClass.BYTES else text(column_type, zone)
