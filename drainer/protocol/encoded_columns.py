"""Encoded rows as Arrow columns, for protocols that build messages from columns.

Keys and values of many rows stay in Arrow buffers, and a message of many rows is a slice of them. No Python object is
created for a single row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes import collector_paused
from drainer.changes.vector import Ints, Words
from drainer.protocol.compression import compress
from drainer.protocol.encoder import EncodedRow
from drainer.protocol.options import Compression


class EncodedColumns(NamedTuple):
    """Many encoded rows: the columns of EncodedRow. `keys` and `values`: large_binary arrays, NULL where a row has no
    key or value. `commit_ts`: an array of the same length."""

    keys: Any
    values: Any
    commit_ts: Words

    def longest(self) -> int:
        """Return an upper bound, in bytes, of the length of one row's key and value together."""
        return sum(int(pc.max(pc.binary_length(column)).as_py() or 0) for column in (self.keys, self.values))

    def rows(self) -> list[EncodedRow]:
        made = partial(tuple.__new__, EncodedRow)  # EncodedRow(...) of each, without a Python call for each
        with collector_paused():
            parts = zip(self.keys.to_pylist(), self.values.to_pylist(), self.commit_ts.tolist(), strict=True)
            return cast("list[EncodedRow]", [*map(made, parts)])

    def take(self, chosen: Ints) -> EncodedColumns:
        """Return the rows at the positions `chosen`, in that order. Copies nothing if the positions are consecutive."""
        first, last = (int(chosen[0]), int(chosen[-1])) if len(chosen) else (0, -1)
        if last - first == len(chosen) - 1 and bool((np.diff(chosen) == 1).all()):
            return self.slice(first, last + 1)
        indexes = pa.array(chosen)
        return EncodedColumns(self.keys.take(indexes), self.values.take(indexes), self.commit_ts[chosen])

    def slice(self, begin: int, end: int) -> EncodedColumns:
        """Return the rows from position `begin` up to, but not including, `end`. Copies nothing."""
        return EncodedColumns(self.keys[begin:end], self.values[begin:end], self.commit_ts[begin:end])


def large_binary(column: Any) -> Any:
    """Cast a binary column to large_binary, whose offsets have 64 bits: the rows of a batch may have more than 2 GiB
    together."""
    return column.cast(pa.large_binary())


def null_column(count: int) -> Any:
    """Return a column of `count` NULLs: the keys or values of rows that have none."""
    return pa.nulls(count, pa.large_binary())


def compressed(column: Any, how: Compression) -> Any:
    """Compress each value of a column (see compression.compress)."""
    if how == "none":
        return column
    return pa.array([compress(value, how) for value in column.to_pylist()], pa.large_binary())


def columns_of(rows: Iterable[EncodedRow]) -> EncodedColumns:
    """Return rows, at least one, as columns: the reverse of `EncodedColumns.rows`."""
    keys, values, stamps = zip(*rows, strict=True)
    kind = pa.large_binary()
    return EncodedColumns(pa.array(keys, kind), pa.array(values, kind), np.array(stamps, np.uint64))


def rows_of(parts: Iterable[EncodedColumns]) -> list[EncodedRow]:
    """Return the rows of all parts as one list, in the order of the parts."""
    return [row for columns in parts for row in columns.rows()]


def concatenated(parts: Sequence[EncodedColumns]) -> EncodedColumns:
    """Concatenate the parts, of which there must be at least one."""
    keys, values, stamps = zip(*parts, strict=True)
    return EncodedColumns(pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(stamps))


def take_parts(parts: Sequence[EncodedColumns], chosen: Ints) -> tuple[list[EncodedColumns], Ints | None]:
    """Take rows from several parts. `chosen`: positions in the concatenation of all parts, at least one.

    Return the chosen rows of each part that has any, and, for each entry of `chosen`, its position in the concatenation
    of the returned parts. The positions are None if the returned rows already have the order of `chosen`.
    """
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


def take_rows(parts: Sequence[EncodedColumns], chosen: Ints) -> EncodedColumns:
    """Take rows from several parts and concatenate them. `chosen`: positions in the concatenation of all parts, at
    least one; the rows are returned in this order. Only chosen rows are copied: all parts together are larger than
    anything else that a task holds in memory."""
    found, back = take_parts(parts, chosen)
    return found[0] if back is None else concatenated(found).take(back)
