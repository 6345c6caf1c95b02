"""Net rows as columns: a sequence of NetRow that makes each NetRow only when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import Any, overload

import numpy as np
import pyarrow as pa

from drainer.batch.work import Folded, Key, Kind, NetRow, TableShape
from drainer.changes.net import States
from drainer.changes.vector import Ints
from drainer.row.format import Format

_KINDS = tuple(Kind)
_COMMA = 1


class Tuples(Sequence[bytes]):
    """The texts of VALUES tuples, stored in one buffer one after another, each followed by a comma."""

    __slots__ = ("_data", "_offsets")

    def __init__(self, data: memoryview, offsets: Ints) -> None:
        """`offsets`: the offset of each tuple, and the end offset of the last one."""
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Tuples: ...

    def __getitem__(self, at: int | slice) -> bytes | Tuples:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "neighbours alone lie behind one another"
            return Tuples(self._data, self._offsets[begin : max(begin, end) + 1])
        index = range(len(self))[at]
        return bytes(self._data[self._offsets[index] : self._offsets[index + 1] - _COMMA])

    def lines(self) -> memoryview:
        """Return all texts, each followed by a comma, without copying."""
        return self._data[self._offsets[0] : self._offsets[-1]]

    def joined(self) -> bytes:
        """Return all texts, separated by commas: the body of a statement."""
        return bytes(self._data[self._offsets[0] : self._offsets[-1] - _COMMA]) if len(self) else b""


class NetColumns(Sequence[NetRow]):
    """The net rows of one table, in the order of their identities."""

    __slots__ = ("_begin", "_end", "_first", "_format", "_gone", "_identity", "_rows")

    def __init__(
        self,
        format_: Format,
        identity: Any,
        first: Ints,
        rows: Any,
        gone: Any | None = None,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """The arrays are as in net.States, `gone` None if there are no images to delete; the sequence has those from
        `begin` to `end`."""
        self._format = format_
        self._identity = identity
        self._first = first
        self._rows = rows
        self._gone = gone
        self._begin = begin
        self._end = len(identity) if end is None else end

    def __len__(self) -> int:
        return self._end - self._begin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, at: int) -> NetRow: ...

    @overload
    def __getitem__(self, at: slice) -> NetColumns: ...

    def __getitem__(self, at: int | slice) -> NetRow | NetColumns:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "neighbours alone are a part of it"
            begin, end = self._begin + begin, self._begin + max(begin, end)
            return NetColumns(self._format, self._identity, self._first, self._rows, self._gone, begin, end)
        index = range(len(self))[at]
        (row,) = self[index : index + 1]
        return row

    def __iter__(self) -> Iterator[NetRow]:
        count = len(self)
        identities, rows = (one.slice(self._begin, count).to_pylist() for one in (self._identity, self._rows))
        kinds = self._first[self._begin : self._end].tolist()
        gone = [None] * count if self._gone is None else self._gone.slice(self._begin, count).to_pylist()
        unpack = self._format.unpack
        for identity, kind, row, images in zip(identities, kinds, rows, gone, strict=True):
            keys = self._keys(images) if images else ()
            yield NetRow(identity, _KINDS[kind], None if row is None else unpack(row), keys)

    def _keys(self, images: Sequence[bytes]) -> tuple[Key, ...]:
        """Return keys from packed images, in an order that depends on nothing but the images."""
        return tuple(sorted(map(self._format.unpack, images), key=repr))

    def live(self) -> Tuples:
        """The texts of the rows that are alive, for a destination of the MySQL family. A dead row has length 0, so the
        texts of the others are adjacent."""
        rows = self._rows.slice(self._begin, len(self))
        _, bounds, data = rows.buffers()
        offsets = np.frombuffer(bounds, np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
        if rows.null_count:
            alive = rows.is_valid().to_numpy(zero_copy_only=False)
            assert (np.diff(offsets)[~alive] == 0).all(), "a dead row has no text"
            offsets = np.append(offsets[:-1][alive], offsets[-1])
        return Tuples(memoryview(data if data is not None else b""), offsets)

    def stale(self) -> list[Key]:
        """The images to delete for all keys, in order."""
        if self._gone is None:
            return []
        offsets = self._gone.offsets.to_numpy()[self._begin : self._end + 1]
        with_images = self._begin + np.flatnonzero(np.diff(offsets))
        return [key for images in self._gone.take(pa.array(with_images)).to_pylist() for key in self._keys(images)]

    @property
    def sizes(self) -> Ints:
        """The length of each row's text; 0 for a dead row."""
        texts = self._rows.slice(self._begin, len(self))
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(self) + 1]
        return np.maximum(np.diff(offsets.astype(np.int64)) - _COMMA, 0)


def tables_of(table: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (table id, begin, end) of each run of rows of one table. `table`: the table id of each row."""
    begins = np.flatnonzero(np.diff(table, prepend=table[:1] - 1)).tolist()
    yield from zip(table[begins].tolist(), begins, [*begins[1:], len(table)], strict=bool(begins))


def folded_of(shapes: Mapping[int, TableShape], states: States, format_: Format) -> tuple[Folded, ...]:
    """Return the net rows of each table. `shapes`: by table id."""
    offsets = states.gone.offsets.to_numpy() if len(states) else []
    found = []
    for table_id, begin, end in tables_of(states.table):
        gone = states.gone if offsets[begin] < offsets[end] else None
        rows = NetColumns(format_, states.identity, states.first, states.row, gone, begin, end)
        found.append(Folded(shapes[table_id], rows))
    return tuple(found)


def columns_of(folded: Folded) -> NetColumns:
    """The net rows of a table as `folded_of` makes them, for a destination that writes their texts."""
    assert isinstance(folded.rows, NetColumns)
    return folded.rows


def joined(tuples: Sequence[bytes], between: bytes) -> bytes:
    """Join texts with a separator."""
    return tuples.joined() if isinstance(tuples, Tuples) and between == b"," else between.join(tuples)
