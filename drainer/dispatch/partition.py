"""Computes the same partition numbers as TiCDC: a hash of names and of values as text, for whole columns at a time.

    hash        xor of these CRC-32s: one of schema and table, and one of name and text of each column that counts
    partition   hash modulo the number of partitions

NULL has the text `null`, like the string "null". Parts are joined without a separator. Both are ambiguous, but other
producers of the same topic do the same, and all producers must agree on a row's partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.types import Tp

from drainer.changes.decode import Columns
from drainer.changes.texts import as_binary
from drainer.protocol.column_text import each, texts_of
from drainer.protocol.table import Table
from drainer.row.column_type import ColumnType, TypeClass

Hashes = npt.NDArray[np.uint32]

_NUMBERS = (TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT)
_ONES: Final = 0xFFFF_FFFF


def hashed_texts(column_type: ColumnType, values: Any, zone: tzinfo) -> Any:
    """Convert an Arrow array of decoded values to a `binary` array of the texts that are hashed, with NULL for NULL.
    Raises DecodeError."""
    if column_type.type_class in _NUMBERS:
        return as_binary(values.cast(pa.string()))
    if column_type.type_class is TypeClass.TEXT:
        return values
    if column_type.type_class is TypeClass.FLOAT:
        number = np.float32 if column_type.kind.tp is Tp.FLOAT else np.float64
        shown = each(lambda value: np.format_float_positional(number(value), unique=True, trim="-").encode())
        return shown(values)
    return texts_of(column_type, values, zone)


def _crcs(texts: Any, begin: int) -> Hashes:
    """Return crc32(text, begin) for each text, computed one byte position of all texts at a time. `texts`: short
    strings without NULL."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    at, lengths = offsets[:-1], np.diff(offsets)
    found: Hashes = np.full(len(texts), begin ^ _ONES, np.uint32)
    shortest = int(lengths.min()) if len(texts) else 0
    for number in range(shortest):
        found = _CRC.take((found ^ data[at + number]) & np.uint32(0xFF)) ^ (found >> np.uint32(8))
    for number in range(shortest, int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > number)
        crc = found[longer]
        found[longer] = _CRC[(crc ^ data[at[longer] + number]) & 0xFF] ^ (crc >> np.uint32(8))
    return found ^ np.uint32(_ONES)


# The table of CRC-32 for one byte.
_CRC: Final = np.array([crc32(bytes([byte]), _ONES) ^ _ONES for byte in range(256)], np.uint32)


def row_hashes(table: Table, column_indexes: Sequence[int], columns: Columns, count: int, zone: tzinfo) -> Hashes:
    """Return the hashes of `count` rows from their table and the columns at `column_indexes`. Raises DecodeError naming
    the column."""
    found = np.full(count, crc32(f"{table.schema}{table.name}".encode()), np.uint32)
    for column_index in column_indexes:
        column = table.columns[column_index]
        begin = crc32(column.name.encode())
        if column.column_type.type_class in _NUMBERS:
            found ^= _crcs(pc.fill_null(hashed_texts(column.column_type, columns[column_index], zone), b"null"), begin)
            continue
        encoded = columns[column_index].dictionary_encode()
        try:
            texts = hashed_texts(column.column_type, encoded.dictionary, zone).to_pylist()
        except DecodeError as error:
            raise error.within(f"column `{table.schema}`.`{table.name}`.`{column.name}`") from None
        hashes = np.array([crc32(text, begin) for text in (b"null", *texts)], np.uint32)
        found ^= hashes[pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False) + 1]
    return found
