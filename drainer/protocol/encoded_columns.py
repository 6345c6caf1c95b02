"""Rows' parts of messages as two Arrow columns, for protocols that put messages together from columns.

A message of many rows is then a slice of what all rows are beside one another, and no Python object is made for a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.vector import Ints, Words
from drainer.order.collector import collector_paused
from drainer.protocol.compression import compress
from drainer.protocol.encoder import EncodedRow, Message
from drainer.protocol.options import Compression
from drainer.protocol.row_changes import RowChanges


class EncodedColumns(NamedTuple):
    """Of many rows what EncodedRow has of one. `keys` and `values`: large_binary, NULL where a row has none;
    `commit_ts` of the same length."""

    keys: Any
    values: Any
    commit_ts: Words

    def longest(self) -> int:
        """An upper bound, in bytes, of a row's key and value together."""
        return sum(int(pc.max(pc.binary_length(column)).as_py() or 0) for column in (self.keys, self.values))

    def rows(self) -> list[EncodedRow]:
        made = partial(tuple.__new__, EncodedRow)  # EncodedRow(...) of each, without a Python call for each
        with collector_paused():
            parts = zip(self.keys.to_pylist(), self.values.to_pylist(), self.commit_ts.tolist(), strict=True)
            return cast("list[EncodedRow]", [*map(made, parts)])

    def take(self, chosen: Ints) -> EncodedColumns:
        """Those at these places, in their order; without a copy where they lie one behind another."""
        first, last = (int(chosen[0]), int(chosen[-1])) if len(chosen) else (0, -1)
        if last - first == len(chosen) - 1 and bool((np.diff(chosen) == 1).all()):
            return self.slice(first, last + 1)
        places = pa.array(chosen)
        return EncodedColumns(self.keys.take(places), self.values.take(places), self.commit_ts[chosen])

    def slice(self, begin: int, end: int) -> EncodedColumns:
        """Nothing is copied."""
        return EncodedColumns(self.keys[begin:end], self.values[begin:end], self.commit_ts[begin:end])


def as_large(column: Any) -> Any:
    """With offsets of 64 bits: rows of a batch together may have more than 2 GiB."""
    return column.cast(pa.large_binary())


def none(count: int) -> Any:
    """Keys or values of so many rows that have none."""
    return pa.nulls(count, pa.large_binary())


def pressed(column: Any, how: Compression) -> Any:
    """Each value compressed (see compression.compress)."""
    if how == "none":
        return column
    return pa.array([compress(value, how) for value in column.to_pylist()], pa.large_binary())


def rows_of(parts: Iterable[EncodedColumns]) -> list[EncodedRow]:
    """Of all parts, one behind another."""
    return [row for columns in parts for row in columns.rows()]


def one_behind_another(parts: Sequence[EncodedColumns]) -> EncodedColumns:
    """At least one part."""
    keys, values, stamps = zip(*parts, strict=True)
    return EncodedColumns(pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(stamps))


def picked(parts: Sequence[EncodedColumns], chosen: Ints) -> tuple[list[EncodedColumns], Ints | None]:
    """The rows at these places of all parts, one behind another; at least one. Of each part those that are chosen, and
    of each chosen row its place among them; None: they are in their order."""
    if len(parts) == 1:
        return [parts[0].take(chosen)], None
    begins = np.cumsum([0, *(len(part.commit_ts) for part in parts)])
    of = np.searchsorted(begins, chosen, side="right") - 1
    numbers: list[int] = np.flatnonzero(np.bincount(of)).tolist()
    found = [parts[number].take(chosen[of == number] - begins[number]) for number in numbers]
    if len(found) == 1:
        return found, None
    back = np.empty(len(chosen), np.int64)
    back[np.argsort(of, kind="stable")] = np.arange(len(chosen))
    return found, back


def taken(parts: Sequence[EncodedColumns], chosen: Ints) -> EncodedColumns:
    """The rows at these places of all parts, one behind another, in their order; at least one. Nothing else is copied,
    for together the parts are larger than all else that a task holds."""
    found, back = picked(parts, chosen)
    return found[0] if back is None else one_behind_another(found).take(back)


@runtime_checkable
class ColumnEncoder(Protocol):
    """An Encoder whose tables encode columns, and that makes the same messages of them as of rows."""

    @property
    def joins_transactions(self) -> bool:
        """Whether rows of one transaction are one message, which is made of rows alone: columns are of rows whose
        transactions have no other row in their partition."""
        ...

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterable[Message]:
        """As Encoder.frame, of the rows at these places of all parts, one behind another; at least one."""
        ...


@runtime_checkable
class ColumnTableEncoder(Protocol):
    """The TableEncoder of a ColumnEncoder."""

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """As TableEncoder.encode, in parts that follow one another."""
        ...
