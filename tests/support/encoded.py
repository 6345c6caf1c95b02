"""Encoded rows one by one: encoders return them as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from drainer.protocol.encoder import EncodedColumns, Encoder, Message, TableEncoder
from drainer.protocol.large import LargeMessages
from drainer.protocol.secondary import SecondaryTable
from drainer.protocol.table import RowChanges


class EncodedRow(NamedTuple):
    """One row of EncodedColumns."""

    key: bytes | None
    value: bytes | None
    commit_ts: int
    around: tuple[bytes, bytes] | None = None


def each_row(parts: Iterable[EncodedColumns]) -> list[EncodedRow]:
    return [
        EncodedRow(*row, part.around)
        for part in parts
        for row in zip(part.keys.to_pylist(), part.values.to_pylist(), part.commit_ts.tolist(), strict=True)
    ]


def encoded_rows(table: TableEncoder, changes: RowChanges) -> list[EncodedRow]:
    """Rows that may be joined with others of their transactions, if the protocol does that."""
    encode = table.encode_joinable if isinstance(table, SecondaryTable) else table.encode_columns
    return each_row(encode(changes))


def handle_only_rows(table: TableEncoder, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
    return each_row(table.encode_handle_only(changes, claims))


def fitted_rows(
    large: LargeMessages, table: TableEncoder, changes: RowChanges, rows: Iterable[EncodedRow]
) -> list[EncodedRow]:
    return each_row(large.fitted(table, changes, columns_of(rows)))


def columns_of(rows: Iterable[EncodedRow]) -> list[EncodedColumns]:
    parts = []
    for around, group in groupby(rows, key=lambda row: row.around):
        keys, values, stamps, _ = zip(*group, strict=True)
        kind = pa.large_binary()
        parts.append(EncodedColumns(pa.array(keys, kind), pa.array(values, kind), np.array(stamps, np.uint64), around))
    return parts


def framed_rows(encoder: Encoder, rows: Iterable[EncodedRow]) -> list[Message]:
    """The messages of these rows of one partition, in this order."""
    parts = columns_of(rows)
    return [*encoder.frame_columns(parts, np.arange(sum(len(part.commit_ts) for part in parts)))] if parts else []
