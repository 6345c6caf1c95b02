"""Encoded rows as Arrow columns, for protocols that build messages from columns, and TiCDC's compression of values.

Keys and values of many rows stay in Arrow buffers, and a message of many rows is a slice of them. No Python object is
created for a single row. A message does not say how its value is compressed: writer and reader must be configured
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cramjam
import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.vector import Ints, Words
from drainer.protocol.encoder import RECORD_OVERHEAD
from drainer.protocol.errors import MessageError
from drainer.protocol.options import Compression

# The longest value in bytes after decompression. TiDB's transactions are much smaller, so a value with a larger length
# is damaged.
LENGTH_MAX: Final = 1 << 30


def compress(data: bytes, how: Compression) -> bytes:
    if how == "snappy":  # the raw block format, not the framing format
        return bytes(cramjam.snappy.compress_raw(data))
    if how == "lz4":
        # One frame of independent blocks with a checksum of the content, as pierrec/lz4 writes by default.
        made: bytes = lz4.frame.compress(
            data,
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
            block_linked=False,
            content_checksum=True,
            store_size=False,
        )
        return made
    return data


def decompress(data: bytes, how: Compression) -> bytes:
    """Decompress a value. Raises MessageError."""
    try:
        if how == "snappy":
            if cramjam.snappy.decompress_raw_len(data) > LENGTH_MAX:
                raise ValueError(f"more than {LENGTH_MAX:,} bytes")
            return bytes(cramjam.snappy.decompress_raw(data))
        if how == "lz4":
            reader = lz4.frame.LZ4FrameDecompressor()
            found: bytes = reader.decompress(data, max_length=LENGTH_MAX)
            if not reader.eof or reader.unused_data:
                raise ValueError("no complete frame, or bytes follow it")
            return found
    except (RuntimeError, ValueError, EOFError, MemoryError, OverflowError, cramjam.DecompressionError) as error:
        raise MessageError(f"a value of {len(data):,} bytes cannot be decompressed as {how}: {error}") from None
    return data


class EncodedColumns(NamedTuple):
    """Many encoded rows: each row's part of a message, before framing. `keys` and `values`: large_binary arrays, NULL
    where a row has no key or, as a tombstone, no value. `commit_ts`: an array of the same length. `around`: what stands
    once in front of and behind the values of all rows of a message (TableEncoder.encode_joinable)."""

    keys: Any
    values: Any
    commit_ts: Words
    around: tuple[bytes, bytes] | None = None

    def lengths(self) -> Ints:
        """Return the length of each row's message, in bytes, counted as in Message.length, without framing."""
        found = np.full(len(self.commit_ts), RECORD_OVERHEAD + sum(map(len, self.around or ())))
        for column in (self.keys, self.values):
            if column.null_count < len(column):
                lengths = pc.binary_length(column)
                found += (pc.fill_null(lengths, 0) if column.null_count else lengths).to_numpy()
        return found

    def take(self, chosen: Ints) -> EncodedColumns:
        """Return the rows at the positions `chosen`, in that order. Copies nothing if the positions are consecutive."""
        first, last = (int(chosen[0]), int(chosen[-1])) if len(chosen) else (0, -1)
        if last - first == len(chosen) - 1 and bool((np.diff(chosen) == 1).all()):
            return self.slice(first, last + 1)
        indexes = pa.array(chosen)
        return self._part(self.keys.take(indexes), self.values.take(indexes), self.commit_ts[chosen])

    def slice(self, begin: int, end: int) -> EncodedColumns:
        """Return the rows from position `begin` up to, but not including, `end`. Copies nothing."""
        return self._part(self.keys[begin:end], self.values[begin:end], self.commit_ts[begin:end])

    def _part(self, keys: Any, values: Any, commit_ts: Words) -> EncodedColumns:
        return EncodedColumns(keys, values, commit_ts, self.around)


def large_binary(column: Any) -> Any:
    """Cast a binary column to large_binary, whose offsets have 64 bits: the rows of a batch may have more than 2 GiB
    together."""
    return column.cast(pa.large_binary())


def null_column(count: int) -> Any:
    """Return a column of `count` NULLs: the keys or values of rows that have none."""
    return pa.nulls(count, pa.large_binary())


def compressed(column: Any, how: Compression) -> Any:
    """Compress each value of a column (see compress)."""
    if how == "none":
        return column
    return pa.array([compress(value, how) for value in column.to_pylist()], pa.large_binary())


def concatenated(parts: Sequence[EncodedColumns]) -> EncodedColumns:
    """Concatenate the parts, of which there must be at least one, all with the same `around`."""
    keys, values, stamps, around = zip(*parts, strict=True)
    return EncodedColumns(pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(stamps), around[0])


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
