"""Rows' parts of messages as two Arrow columns, for protocols that put messages together from columns.

A message of many rows is then a slice of what all rows are beside one another, and no Python object is made for a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.vector import Ints, Words
from drainer.protocol.encoder import EncodedRow, Message
from drainer.protocol.row_changes import RowChanges


class EncodedColumns(NamedTuple):
    """Of many rows what EncodedRow has of one. `keys` and `values`: large_binary without NULLs, `commit_ts` of the
    same length."""

    keys: Any
    values: Any
    commit_ts: Words

    def longest(self) -> int:
        """An upper bound, in bytes, of a row's key and value together."""
        return sum(int(pc.max(pc.binary_length(column)).as_py() or 0) for column in (self.keys, self.values))

    def rows(self) -> list[EncodedRow]:
        return list(map(EncodedRow, self.keys.to_pylist(), self.values.to_pylist(), self.commit_ts.tolist()))

    def take(self, chosen: Ints) -> EncodedColumns:
        """Those at these places, in their order."""
        places = pa.array(chosen)
        return EncodedColumns(self.keys.take(places), self.values.take(places), self.commit_ts[chosen])


def as_large(column: Any) -> Any:
    """With offsets of 64 bits: rows of a batch together may have more than 2 GiB."""
    return column.cast(pa.large_binary())


def one_behind_another(parts: Sequence[EncodedColumns]) -> EncodedColumns:
    """At least one part."""
    keys, values, stamps = zip(*parts, strict=True)
    return EncodedColumns(pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(stamps))


def taken(parts: Sequence[EncodedColumns], chosen: Ints) -> EncodedColumns:
    """The rows at these places of all parts, one behind another, in their order; at least one. Nothing else is copied,
    for together the parts are larger than all else that a task holds."""
    begins = np.cumsum([0, *(len(part.commit_ts) for part in parts)])
    of = np.searchsorted(begins, chosen, side="right") - 1
    numbers: list[int] = np.unique(of).tolist()
    found = [parts[number].take(chosen[of == number] - begins[number]) for number in numbers]
    if len(found) == 1:
        return found[0]
    back = np.empty(len(chosen), np.int64)
    back[np.argsort(of, kind="stable")] = np.arange(len(chosen))
    return one_behind_another(found).take(back)


@runtime_checkable
class ColumnEncoder(Protocol):
    """An Encoder whose tables encode columns, and that makes the same messages of them as of rows."""

    def frame_columns(self, columns: EncodedColumns) -> Iterator[Message]:
        """As Encoder.frame."""
        ...


@runtime_checkable
class ColumnTableEncoder(Protocol):
    """The TableEncoder of a ColumnEncoder."""

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """As TableEncoder.encode, in parts that follow one another."""
        ...
