"""Encodes rows of one table as secondary binlogs of transactions with a single row, many at a time. Pure.

The bytes are the same as those that columns.py and encoder.py join one by one. Every nested message has its length in
front, so all lengths are computed before any message is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from binlog.tidb.types import Tp

from drainer.changes.vector import Ints, Words
from drainer.protocol.avro.blocks import Piece, byte_lengths, constant, fixed, joined, uvarints
from drainer.protocol.avro.blocks import beside as blocks_beside
from drainer.protocol.secondary.columns import BYTES, INT64, NULL, STRING, UINT64, cells
from drainer.row.column_type import ColumnType, TypeClass

_COLUMNS: Final = b"\x0a"
_TABLES: Final = b"\x0a"
_DML: Final = b"\x08\x00\x10"  # the type; the tag of commit_ts
_DML_DATA: Final = b"\x1a"


class Sized(NamedTuple):
    """Bytes for each row: consecutive pieces (avro/blocks.py), and their total length in bytes."""

    pieces: list[Piece]
    lengths: Ints


def beside(*parts: Sized) -> Sized:
    return Sized([piece for part in parts for piece in part.pieces], np.sum([part.lengths for part in parts], axis=0))


def same(data: bytes, rows: int) -> Sized:
    """Return the same bytes in every row."""
    return Sized([pa.scalar(data, pa.binary())], np.full(rows, len(data)))


def field(tag: bytes, payload: Sized) -> Sized:
    """Return a field that holds bytes, text or a message."""
    rows, length = len(payload.lengths), uvarints(payload.lengths.view(np.uint64))
    lengths = payload.lengths + len(tag) + length.keep.sum(axis=1)
    return Sized([constant(tag, rows), length, *payload.pieces], lengths)


def cell(column_type: ColumnType, array: Any, zone: tzinfo) -> Sized:
    """Encode a column's decoded values, each as a field `columns` of a Row. Raises DecodeError as `columns.cells`."""
    if column_type.type_class in (TypeClass.TEXT, TypeClass.BYTES):
        return field(_COLUMNS, _text(STRING if column_type.type_class is TypeClass.TEXT else BYTES, array))
    if column_type.type_class is TypeClass.INT and column_type.kind.tp is not Tp.YEAR:
        return field(_COLUMNS, _number(UINT64 if column_type.kind.is_unsigned else INT64, array))
    made = pa.array(cells(column_type, array, zone), pa.binary())
    return Sized([made], byte_lengths(made))


def messages(commits: Words, head: bytes, mutation: Sized, tail: bytes) -> Any:
    """Return complete messages as `large_binary`. `mutation`: the field of `Table` between `head` and `tail`."""
    rows = len(commits)
    table = beside(same(head, rows), mutation, same(tail, rows))
    data = field(_DML_DATA, field(_TABLES, table))
    return joined([constant(_DML, rows), uvarints(commits), *data.pieces], rows)


def row(cells_of: Sequence[Sized], rows: int) -> Sized:
    """Return messages `Row`."""
    return beside(*cells_of) if cells_of else Sized([], np.zeros(rows, np.int64))


def _text(tag: bytes, array: Any) -> Sized:
    """Encode texts as messages `Column`. NULL has no text: the tag of is_null and the number 1 replace the text's tag
    and length."""
    sizes = byte_lengths(array)
    lengths = uvarints(_or_one(sizes, array).view(np.uint64))
    return Sized([blocks_beside(_tags(tag, array), lengths), array], sizes + 1 + lengths.keep.sum(axis=1))


def _number(tag: bytes, array: Any) -> Sized:
    """Encode numbers as messages `Column`. Negative numbers have the ten bytes of their two's complement."""
    values = array.fill_null(1) if array.null_count else array
    numbers = uvarints(values.to_numpy(zero_copy_only=False).view(np.uint64))
    return Sized([blocks_beside(_tags(tag, array), numbers)], 1 + numbers.keep.sum(axis=1))


def _or_one(sizes: Ints, array: Any) -> Ints:
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 1) if array.null_count else sizes


def _tags(tag: bytes, array: Any) -> Any:
    if not array.null_count:
        return constant(tag, len(array))
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return fixed(np.where(valid, tag[0], NULL[0]).astype(np.uint8)[:, None])
