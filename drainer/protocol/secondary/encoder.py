"""The secondary binlog (secondary_binlog.proto): all rows of a transaction are one message.

`encode_columns` is for rows whose transaction has no other row in their partition: each is a complete message.

`encode_joinable` is for all others. A value is a table's field `mutations` with one row; a key is the transaction's
start_ts; `around` are the table's fields in front of the mutations and those behind them. `frame_columns` joins
consecutive rows with equal commit_ts and start_ts to a message, and within it consecutive rows of one table. Messages
have no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
from binlog.tidb.types import Flag
from binlog.tidb.varint import VARINTS, field, signed

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Ints
from drainer.protocol.avro.blocks import joined, uvarints
from drainer.protocol.encoded_columns import EncodedColumns, null_column, take_parts
from drainer.protocol.encoder import Ddl, DdlScope, Message
from drainer.protocol.json_rows import fragments_of
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.row_messages import OneRowMessages, TableEncoder
from drainer.protocol.secondary.messages import Sized, beside, cell, messages, row, same
from drainer.protocol.secondary.messages import field as field_of
from drainer.protocol.table import Column, Table

NAME: Final = "secondary-binlog"
_MUTATION_TYPES: Final = {Kind.INSERT: b"\x08\x00", Kind.UPDATE: b"\x08\x01", Kind.DELETE: b"\x08\x02"}


class SecondaryTable(TableEncoder):
    """See row_messages.TableEncoder."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options)
        self._cells = [partial(cell, column.column_type, zone=options.zone) for column in table.columns]
        self._before, self._behind = _described(table)

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """See row_messages.TableEncoder. The rows must meet the condition in the module's docstring."""
        count = len(changes)
        if not count:
            return []
        values = messages(changes.commit_ts, self._before, self._mutations(changes), self._behind)
        return [EncodedColumns(null_column(count), values, changes.commit_ts)]

    def encode_joinable(self, changes: RowChanges) -> list[EncodedColumns]:
        count = len(changes)
        if not count:
            return []
        starts = pa.array([start_ts.to_bytes(8, "big") for start_ts in changes.start_ts.tolist()], pa.large_binary())
        values = joined(self._mutations(changes).pieces, count)
        return [EncodedColumns(starts, values, changes.commit_ts, (self._before, self._behind))]

    def _mutations(self, changes: RowChanges) -> Sized:
        """Encode rows as fields `mutations`."""
        first = field_of(b"\x12", self._row(changes, changes.image))
        parts = [same(_MUTATION_TYPES[changes.kind], len(changes)), first]
        if changes.kind is Kind.UPDATE:
            assert changes.old is not None
            parts.append(field_of(b"\x1a", self._row(changes, changes.old)))
        return field_of(b"\x22", beside(*parts))

    def _row(self, changes: RowChanges, columns: Columns) -> Sized:
        return row(fragments_of(changes, columns, self._cells, self._all), len(changes))


class SecondaryEncoder(OneRowMessages):
    """See encoder.Encoder. The limits of a batch are ignored: a transaction is never divided."""

    name = NAME
    ddl_scope = DdlScope.FIRST_PARTITION  # upstream uses no other
    joins_transactions = True
    table_class = SecondaryTable

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterable[Message]:
        return super().frame_columns(parts, chosen) if parts[0].around is None else _joined(parts, chosen)

    def ddl(self, ddl: Ddl) -> list[Message]:
        names = field(b"\x0a", ddl.schema.encode()) + field(b"\x12", ddl.table.encode())
        data = names + field(b"\x1a", ddl.query.encode())
        return [Message(None, b"\x08\x01\x10" + signed(ddl.commit_ts) + field(b"\x22", data), 0, ddl.commit_ts)]


def _joined(parts: Sequence[EncodedColumns], chosen: Ints) -> Iterator[Message]:
    """Yield a message for each transaction."""
    taken, back = take_parts(parts, chosen)
    rows = [
        (*row, part.around or (b"", b""))
        for part in taken
        for row in zip(part.keys.to_pylist(), part.values.to_pylist(), part.commit_ts.tolist(), strict=True)
    ]
    rows = rows if back is None else [rows[at] for at in back.tolist()]
    stamps = joined([uvarints(np.array([commit_ts for _, _, commit_ts, _ in rows], np.uint64))], len(rows)).to_pylist()
    begin = 0
    while begin < len(rows):
        start, mutation, commit_ts, around = rows[begin]
        end = begin + 1
        while end < len(rows) and rows[end][2] == commit_ts and rows[end][0] == start:
            end += 1
        if end == begin + 1:  # the case of most transactions: the same result as below, much faster
            table = around[0] + mutation + around[1]
            data = b"\x0a" + VARINTS[len(table)] + table
        else:
            tables = groupby(rows[begin:end], key=itemgetter(3))
            data = b"".join(
                field(b"\x0a", b"".join((before, *(row[1] for row in of_table), behind)))
                for (before, behind), of_table in tables
            )
        value = b"".join((b"\x08\x00\x10", stamps[begin], b"\x1a", VARINTS[len(data)], data))
        yield Message(None, value, end - begin, commit_ts)
        begin = end


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
