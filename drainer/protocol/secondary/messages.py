"""Encodes rows of one table as secondary binlogs of transactions with a single row, many at a time. Pure.

Every nested message has its length in front, so all lengths are computed before any message is written. The field of
each type: `D-TR-08`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.types import FieldType, Tp
from binlog.tidb.varint import VARINTS

from drainer.changes.texts import numbers_of
from drainer.changes.vector import Ints, Words
from drainer.protocol.avro.blocks import Piece, byte_lengths, constant, fixed, joined, uvarints
from drainer.protocol.avro.blocks import beside as blocks_beside
from drainer.protocol.column_text import texts_of
from drainer.row.column_type import ColumnType, TypeClass

# Column: is_null=1, int64_value=2, uint64_value=3, double_value=4, bytes_value=5, string_value=6
_NULL: Final = b"\x08\x01"
_INT64, _UINT64, _DOUBLE, _BYTES, _STRING = b"\x10", b"\x18", b"\x21", b"\x2a", b"\x32"
_double = Struct("<d").pack
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
    """Encode a column's decoded values (row/column_type.py), each as a field `columns` of a Row, with its tag and
    length. Raises DecodeError for a value that a column of its type cannot hold."""
    type_class, kind = column_type.type_class, column_type.kind
    if type_class in (TypeClass.TEXT, TypeClass.BYTES):
        column = _text(_STRING if type_class is TypeClass.TEXT else _BYTES, array)
    elif type_class is TypeClass.INT and kind.tp is not Tp.YEAR:
        column = _number(_UINT64 if kind.is_unsigned else _INT64, array)
    elif type_class in (TypeClass.ENUM, TypeClass.SET):
        column = _number(_UINT64, numbers_of(column_type, array))
    elif type_class is TypeClass.FLOAT:
        column = _one_by_one([_NULL if value is None else _DOUBLE + _double(value) for value in _doubles(kind, array)])
    elif type_class is TypeClass.BIT:
        size = (max(kind.flen, 1) + 7) // 8
        head = _BYTES + VARINTS[size]
        bits = numbers_of(column_type, array).to_pylist()
        column = _one_by_one([_NULL if value is None else head + value.to_bytes(size, "big") for value in bits])
    else:
        column = _text(_BYTES if type_class is TypeClass.JSON else _STRING, texts_of(column_type, array, zone))
    return field(_COLUMNS, column)


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
    shown = np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 1) if array.null_count else sizes
    lengths = uvarints(shown.view(np.uint64))
    return Sized([blocks_beside(_tags(tag, array), lengths), array], sizes + 1 + lengths.keep.sum(axis=1))


def _number(tag: bytes, array: Any) -> Sized:
    """Encode numbers as messages `Column`. Negative numbers have the ten bytes of their two's complement."""
    values = array.fill_null(1) if array.null_count else array
    numbers = uvarints(values.to_numpy(zero_copy_only=False).view(np.uint64))
    return Sized([blocks_beside(_tags(tag, array), numbers)], 1 + numbers.keep.sum(axis=1))


def _tags(tag: bytes, array: Any) -> Any:
    if not array.null_count:
        return constant(tag, len(array))
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return fixed(np.where(valid, tag[0], _NULL[0]).astype(np.uint8)[:, None])


def _one_by_one(columns: Sequence[bytes]) -> Sized:
    made = pa.array(columns, pa.binary())
    return Sized([made], byte_lengths(made))


def _doubles(kind: FieldType, array: Any) -> list[float | None]:
    """Encode doubles. A FLOAT is rounded to the 32-bit float that it is."""
    found: list[float | None] = array.to_pylist()
    if kind.tp is not Tp.FLOAT:
        return found
    singles = [0.0 if value is None else value for value in found]
    with np.errstate(over="ignore"):
        rounded = np.array(singles, np.float64).astype(np.float32).astype(np.float64)
    if not np.isfinite(rounded).all():
        raise DecodeError("float", offset=0, detail="a value does not fit 4 bytes")
    return pa.array(rounded, mask=np.array([value is None for value in found], bool)).to_pylist()  # type: ignore[no-any-return]
