"""The secondary binlog (secondary_binlog.proto): all rows of a transaction are one message.

`EncodedRow.value` is a table's field `mutations` with one row. `EncodedRow.key` identifies the transaction and the
table: start_ts, then the table's fields in front of the mutations, then those after them. `frame` joins consecutive
rows with equal commit_ts and start_ts to a message, and within it consecutive rows of one table. Messages have no key.

Encoded columns only hold rows whose transaction has no other row in their partition, so each row is a complete message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from functools import partial
from itertools import groupby
from struct import Struct
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.types import Flag

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Ints
from drainer.protocol.avro.blocks import joined
from drainer.protocol.encoded_columns import EncodedColumns, null_column
from drainer.protocol.encoder import CompiledTables, Ddl, DdlScope, EncodedRow, Message
from drainer.protocol.errors import EncodeError, ProtocolConfigError, refused
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.protobuf_bytes import VARINTS, field, signed, uvarints
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.row_messages import RowMessages
from drainer.protocol.secondary.columns import cells, rows
from drainer.protocol.secondary.messages import Sized, beside, cell, messages, row, same
from drainer.protocol.secondary.messages import field as field_of
from drainer.protocol.table import Column, Table
from drainer.row.column_type import ColumnType

T = TypeVar("T")

# Below this number of rows, rows are encoded one by one: arrays would cost more than they save.
VECTOR_ROWS_MIN: Final = 100
NAME: Final = "secondary-binlog"
_KEY: Final = Struct("<QI")  # start_ts, and the length of the fields in front of the mutations
_START_BYTES: Final = 8
_MUTATION_TYPES: Final = {Kind.INSERT: b"\x08\x00", Kind.UPDATE: b"\x08\x01", Kind.DELETE: b"\x08\x02"}


def make_encoder(options: ProtocolOptions) -> SecondaryEncoder:
    """Return the encoder. Raises ProtocolConfigError if the time zone is not known, or for options that the protocol
    does not have."""
    if options.large_message_handle_option != "none":
        raise ProtocolConfigError(
            f"{NAME} has no replacement for messages that are too large: remove large-message-handle-option"
        )
    try:
        return SecondaryEncoder(ZoneInfo(options.time_zone))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ProtocolConfigError(f"time zone {options.time_zone!r} is not known") from error


class SecondaryEncoder:
    """See encoder.Encoder. The limits of a batch are ignored: a transaction is never divided."""

    joins_transactions: Final = True

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._tables = CompiledTables[SecondaryTable]()

    @property
    def name(self) -> str:
        return NAME

    @property
    def ddl_scope(self) -> DdlScope:
        """Return the scope of the first partition, the only one that upstream uses."""
        return DdlScope.FIRST_PARTITION

    def table(self, table: Table) -> SecondaryTable:
        return self._tables.get(table.key, lambda: SecondaryTable(table, self._zone))

    def frame(self, rows: Iterable[EncodedRow]) -> Iterator[Message]:
        return frame(list(rows))

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> RowMessages:
        return RowMessages(parts, chosen)

    def ddl(self, ddl: Ddl) -> list[Message]:
        names = field(b"\x0a", ddl.schema.encode()) + field(b"\x12", ddl.table.encode())
        data = names + field(b"\x1a", ddl.query.encode())
        return [Message(None, b"\x08\x01\x10" + signed(ddl.commit_ts) + field(b"\x22", data), 0, ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        return []

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        return []

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        return []


def frame(given: Sequence[EncodedRow], *, alone: bool = False) -> Iterator[Message]:
    """Yield a message for each transaction. `alone`: each row is the only one of its transaction."""
    stamps = uvarints(np.array([row.commit_ts for row in given], np.uint64))
    begin = 0
    while begin < len(given):
        key, mutation, commit_ts = given[begin]
        end = begin + 1 if alone else _end(given, begin)
        if end == begin + 1:  # the case of most transactions: the same result as below, much faster
            table = _table(key or b"", (mutation or b"",))
            data = b"\x0a" + VARINTS[len(table)] + table
        else:
            tables = groupby(given[begin:end], key=_key)
            data = b"".join(
                field(b"\x0a", _table(key or b"", [row.value or b"" for row in of_table])) for key, of_table in tables
            )
        value = b"".join((b"\x08\x00\x10", stamps[begin], b"\x1a", VARINTS[len(data)], data))
        yield Message(None, value, end - begin, commit_ts)
        begin = end


class SecondaryTable:
    """See encoder.TableEncoder."""

    def __init__(self, table: Table, zone: ZoneInfo) -> None:
        self._table = table
        self._zone = zone
        self._before, self._behind = _described(table)
        self._length, self._fields = len(self._before), self._before + self._behind

    def encode(self, changes: RowChanges) -> list[EncodedRow]:
        many = len(changes) >= VECTOR_ROWS_MIN
        values = joined(self._mutations(changes).pieces, len(changes)).to_pylist() if many else self._few(changes)
        starts = changes.start_ts.tolist()
        keys = {start_ts: _KEY.pack(start_ts, self._length) + self._fields for start_ts in set(starts)}
        stamps = changes.commit_ts.tolist()
        return [EncodedRow(keys[start], value, ts) for start, value, ts in zip(starts, values, stamps, strict=True)]

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """See encoder.TableEncoder. The rows must meet the condition in the module's docstring."""
        count = len(changes)
        if not count:
            return []
        if count < VECTOR_ROWS_MIN:
            made = frame(self.encode(changes), alone=True)
            values = pa.array([message.value for message in made], pa.large_binary())
        else:
            values = messages(changes.commit_ts, self._before, self._mutations(changes), self._behind)
        return [EncodedColumns(null_column(count), values, changes.commit_ts)]

    def _few(self, changes: RowChanges) -> list[bytes]:
        """Encode a few rows as fields `mutations`."""
        old, new = self._rows(changes, changes.old), self._rows(changes, changes.new)
        head = _MUTATION_TYPES[changes.kind] + b"\x12"
        mutations = [head + VARINTS[len(row)] + row for row in (new or old)]
        if changes.kind is Kind.UPDATE:
            mutations = [start + b"\x1a" + VARINTS[len(row)] + row for start, row in zip(mutations, old, strict=True)]
        return [b"\x22" + VARINTS[len(mutation)] + mutation for mutation in mutations]

    def _mutations(self, changes: RowChanges) -> Sized:
        """Return the same as `_few`, with arrays."""
        first = field_of(b"\x12", self._row(changes, changes.image))
        parts = [same(_MUTATION_TYPES[changes.kind], len(changes)), first]
        if changes.kind is Kind.UPDATE:
            assert changes.old is not None
            parts.append(field_of(b"\x1a", self._row(changes, changes.old)))
        return field_of(b"\x22", beside(*parts))

    def _row(self, changes: RowChanges, columns: Columns) -> Sized:
        pairs = zip(self._table.columns, columns, strict=True)
        return row([self._made(cell, changes, column, array) for column, array in pairs], len(changes))

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
        raise EncodeError(f"{NAME} has no messages of handle keys alone")

    def _rows(self, changes: RowChanges, columns: Columns | None) -> list[bytes]:
        if columns is None:
            return []
        pairs = zip(self._table.columns, columns, strict=True)
        return rows([self._made(cells, changes, column, array) for column, array in pairs], len(changes))

    def _made(self, make: Callable[[ColumnType, Any, tzinfo], T], changes: RowChanges, column: Column, array: Any) -> T:
        try:
            return make(column.column_type, array, self._zone)
        except DecodeError as error:
            where = f"`{self._table.schema}`.`{self._table.name}`.`{column.name}`"
            convert = partial(cells, column.column_type, zone=self._zone)
            raise refused(where, changes.commit_ts, [array], convert, error) from error


def _key(row: EncodedRow) -> bytes | None:
    return row.key


def _end(rows: Sequence[EncodedRow], begin: int) -> int:
    """Return the position after the last row of the transaction that begins at `begin`."""
    key, _, commit_ts = rows[begin]
    start = (key or b"")[:_START_BYTES]
    end = begin + 1
    while end < len(rows) and rows[end].commit_ts == commit_ts and (rows[end].key or b"")[:_START_BYTES] == start:
        end += 1
    return end


def _table(key: bytes, mutations: Sequence[bytes]) -> bytes:
    """Return a message `Table`."""
    _, length = _KEY.unpack_from(key)
    middle = _KEY.size + length
    return b"".join((key[_KEY.size : middle], *mutations, key[middle:]))


def _described(table: Table) -> tuple[bytes, bytes]:
    """Return the fields of `Table` in front of the mutations, and those after them."""
    columns = [field(b"\x1a", _column_info(column)) for column in table.columns]
    before = field(b"\x0a", table.schema.encode()) + field(b"\x12", table.name.encode()) + b"".join(columns)
    behind = [
        field(
            b"\x2a",
            field(b"\x0a", index.name.encode())
            + b"".join(field(b"\x12", part.name.encode()) for part in index.columns),
        )
        for index in table.info.unique_indexes()
    ]
    return before, b"".join(behind)


def _column_info(column: Column) -> bytes:
    kind = column.column_type.kind
    is_primary = b"\x01" if column.info.type.flag & Flag.PRI_KEY else b"\x00"
    texts = field(b"\x0a", column.name.encode()) + field(b"\x12", kind.mysql_name.encode())
    return texts + b"\x18" + is_primary + b"\x20" + signed(kind.flen) + b"\x28" + signed(kind.decimal)
