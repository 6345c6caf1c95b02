"""Messages of one row each, as columns: whoever sends them needs their bytes, and no Message for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow.compute as pc

from drainer.changes.vector import Ints
from drainer.protocol.encoded_columns import EncodedColumns, picked
from drainer.protocol.encoder import RECORD_OVERHEAD, EncodedRow, Message

# How many become Python objects at a time where they are asked for one by one.
_STEP_MESSAGES: Final = 1000
_STEP_BYTES: Final = 1 << 20


def frame_rows(rows: Iterable[EncodedRow]) -> Iterator[Message]:
    """A message for each row."""
    made = partial(tuple.__new__, Message)  # Message(...) of each, without a Python call for each
    return cast("Iterator[Message]", map(made, ((key, value, 1, commit_ts) for key, value, commit_ts in rows)))


class Chunk(NamedTuple):
    """Keys and values of messages that follow one another, and how many bytes these are, as Message.length counts.
    `keys` None: none has a key."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    bytes: int


class RowMessages:
    """The rows at these places of all parts, one behind another; at least one. Can be iterated as often as is asked
    for."""

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
        """Of at most so many messages; each ends with the message that reaches `size`."""
        parts, back = picked(self._parts, self._chosen)
        lengths = np.concatenate([_lengths(part) for part in parts])
        ends = np.cumsum(lengths if back is None else lengths[back])
        begin = before = 0
        while begin < len(ends):
            end = min(int(np.searchsorted(ends, before + size)) + 1, begin + messages, len(ends))
            some, order = parts, back
            if end - begin < len(ends):
                some, order = picked(parts, np.arange(begin, end) if back is None else back[begin:end])
            yield _chunk(some, order, int(ends[end - 1]) - before)
            begin, before = end, int(ends[end - 1])


def _lengths(columns: EncodedColumns) -> Ints:
    """Of each row's message."""
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
    """Of all columns, one behind another, in this order."""
    if order is None:
        found: list[bytes | None] = columns[0].to_pylist()
        return found
    each = [value for column in columns for value in column.to_pylist()]
    return [each[at] for at in order]
