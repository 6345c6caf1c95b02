"""Messages of one row each, as columns. The producer sends their bytes, so no Message object is created for a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow.compute as pc

from drainer.changes.vector import Ints
from drainer.protocol.encoded_columns import EncodedColumns, take_parts
from drainer.protocol.encoder import RECORD_OVERHEAD, EncodedRow, Message

# The most messages, and bytes, that iteration converts to Python objects at a time.
_STEP_MESSAGES: Final = 1000
_STEP_BYTES: Final = 1 << 20


def frame_rows(rows: Iterable[EncodedRow]) -> Iterator[Message]:
    """Return an iterator of messages with one row each."""
    made = partial(tuple.__new__, Message)  # Message(...) of each, without a Python call for each
    return cast("Iterator[Message]", map(made, ((key, value, 1, commit_ts) for key, value, commit_ts in rows)))


class Chunk(NamedTuple):
    """Keys and values of consecutive messages. `bytes`: their total length, counted as in Message.length. `keys`: None
    if no message has a key."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    bytes: int


class RowMessages:
    """The messages of the rows at the positions `chosen` in the concatenation of all parts, at least one row. Can be
    iterated any number of times."""

    def __init__(self, parts: Sequence[EncodedColumns], chosen: Ints) -> None:
        self._parts, self._chosen = parts, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[Message]:
        stamps = np.concatenate([part.commit_ts for part in self._parts])[self._chosen].tolist()
        at = 0
        for keys, values, _ in self.chunks(_STEP_MESSAGES, _STEP_BYTES):
            for key, value in zip(keys or [None] * len(values), values, strict=True):
                yield Message(key, value, 1, stamps[at])
                at += 1

    def chunks(self, messages: int, size: int) -> Iterator[Chunk]:
        """Yield chunks of at most `messages` messages. A chunk ends at the first message with which it has `size` bytes
        or more."""
        parts, back = take_parts(self._parts, self._chosen)
        lengths = np.concatenate([_lengths(part) for part in parts])
        ends = np.cumsum(lengths if back is None else lengths[back])
        begin = before = 0
        while begin < len(ends):
            end = min(int(np.searchsorted(ends, before + size)) + 1, begin + messages, len(ends))
            some, order = parts, back
            if end - begin < len(ends):
                some, order = take_parts(parts, np.arange(begin, end) if back is None else back[begin:end])
            yield _chunk(some, order, int(ends[end - 1]) - before)
            begin, before = end, int(ends[end - 1])


def _lengths(columns: EncodedColumns) -> Ints:
    """Return the length of each row's message, in bytes."""
    found = np.full(len(columns.commit_ts), RECORD_OVERHEAD)
    for column in (columns.keys, columns.values):
        if column.null_count < len(column):
            lengths = pc.binary_length(column)
            found += (pc.fill_null(lengths, 0) if column.null_count else lengths).to_numpy()
    return found


def _chunk(parts: Sequence[EncodedColumns], places: Ints | None, size: int) -> Chunk:
    order = None if places is None else places.tolist()
    has_keys = any(part.keys.null_count < len(part.commit_ts) for part in parts)
    keys = _values([part.keys for part in parts], order) if has_keys else None
    return Chunk(keys, _values([part.values for part in parts], order), size)


def _values(columns: Sequence[Any], order: Sequence[int] | None) -> list[bytes | None]:
    """Return the values of all columns, concatenated and then reordered: `order` holds the position of each value to
    return."""
    if order is None:
        found: list[bytes | None] = columns[0].to_pylist()
        return found
    each = [value for column in columns for value in column.to_pylist()]
    return [each[at] for at in order]
