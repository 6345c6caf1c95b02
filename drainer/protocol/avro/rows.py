"""Encodes rows of one table as bytes, from columns: with arrays, or value by value for a few rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from drainer.changes.vector import Words
from drainer.protocol.avro import blocks
from drainer.protocol.avro.column import pieces_of
from drainer.protocol.avro.schema import Field
from drainer.protocol.avro.values import varint, writer_of
from drainer.row.form import Form

# Fewer rows than this are written one by one: arrays cost some 80 µs a column and call, however few rows there are, and
# a value a microsecond (python -m bench.avro).
VECTOR_ROWS_MIN: Final = 100
Pieces = list[Any]


class Rows(Protocol):
    """Encodes pieces of every row, which the caller joins in an order of its choice. The type of a piece depends on the
    implementation."""

    def column(self, place: int, array: Any) -> Pieces:
        """Encode a column of carriers. Raises DecodeError, which does not name the row."""
        ...

    def constant(self, data: bytes, rows: int) -> Pieces: ...

    def longs(self, numbers: Words) -> Pieces: ...

    def joined(self, pieces: Pieces, rows: int) -> Any:
        """Concatenate the pieces of each row. Return the rows as `large_binary`."""
        ...


class Many:
    """Encodes with arrays."""

    def __init__(self, fields: Sequence[Field], forms: Sequence[Form], zone: tzinfo) -> None:
        self._fields, self._forms, self._zone = fields, forms, zone

    def column(self, place: int, array: Any) -> Pieces:
        return pieces_of(self._fields[place], self._forms[place], array, self._zone)

    def constant(self, data: bytes, rows: int) -> Pieces:
        return [blocks.constant(data, rows)]

    def longs(self, numbers: Words) -> Pieces:
        return [blocks.varints(numbers.view(np.int64))]

    def joined(self, pieces: Pieces, rows: int) -> Any:
        return blocks.joined(pieces, rows)


class Few:
    """Encodes value by value."""

    def __init__(self, fields: Sequence[Field], forms: Sequence[Form], zone: tzinfo) -> None:
        self._writers = [writer_of(field, form, zone) for field, form in zip(fields, forms, strict=True)]

    def column(self, place: int, array: Any) -> Pieces:
        return [list(map(self._writers[place], array.to_pylist()))]

    def constant(self, data: bytes, rows: int) -> Pieces:
        return [[data] * rows]

    def longs(self, numbers: Words) -> Pieces:
        return [list(map(varint, numbers.tolist()))]

    def joined(self, pieces: Pieces, rows: int) -> Any:
        return pa.array(list(map(b"".join, zip(*pieces, strict=True))), pa.large_binary())
