"""Messages of one row each, as columns. The producer sends their bytes, so no Message object is created for a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from drainer.batch.work import Kind
from drainer.changes.vector import Ints
from drainer.protocol.encoder import EncodedColumns, Encoder, Message, compressed, null_column, take_parts
from drainer.protocol.errors import EncodeError
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
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import ColumnType, TypeClass

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
    """Return the values of all columns, concatenated and then reordered: `order` holds the index of each value to
    return."""
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
        """Encode each row, in the order of `changes`, as consecutive parts. Raises EncodeError naming table, column and
        commit_ts."""

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
        """Return the keys of messages."""
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
        """Return the columns behind the image's: the old image of an update."""
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
