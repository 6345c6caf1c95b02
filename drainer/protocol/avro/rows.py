"""Rows of one table as bytes, from columns: with arrays, or with values one by one where there are few. Pure."""

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
    """Pieces of every row, to be joined in an order that the caller knows; what a piece is, is this one's own."""

    def column(self, place: int, array: Any) -> Pieces:
        """Of carriers. Raises DecodeError, which names no row."""
        ...

    def constant(self, data: bytes, rows: int) -> Pieces: ...

    def longs(self, numbers: Words) -> Pieces: ...

    def joined(self, pieces: Pieces, rows: int) -> Any:
        """The bytes of each row, `large_binary`."""
        ...


class Many:
    """With arrays."""

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
    """One by one."""

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
