"""Compares a table of the destination with upstream's, both as they were at the destination's position, and repairs it.

The position is stored in the destination, so a consistent snapshot of it knows its TSO, and upstream is read at that
TSO: the two sides are the same moment, while the stream goes on. A repair is a transaction that keeps the position as
it is until it ends, reads the rows that differ on both sides once more, and writes what is different then. The drainer
need not be stopped: its next transaction waits for that one.

Both sides are rows as the destination gets them, packed in its format, so equal values are equal bytes and no collation
and no order of a server matters. Each side is read once, in any order: the hash of each row is added to the bucket of
its key, and the buckets are compared. Only the rows of unequal buckets are read again, and compared one by one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import BinlogError

from drainer.apply.progress import Stopped
from drainer.batch.work import Folded, KeyChange, Kind, Ordered, SegmentWork, TableShape
from drainer.changes.net import IMAGES, NetColumns
from drainer.changes.vector import Ints, Words
from drainer.ranges.upstream import (
    KEYS_MAX,
    DefinitionChanged,
    Range,
    Snapshot,
    SnapshotGone,
    Source,
    Upstream,
    UpstreamDown,
)
from drainer.row.codec import Codec, Format
from drainer.schema.view import TableVersions
from drainer.sink.errors import DestinationDown, PositionMoved, SchemaMoved, Transient
from drainer.sink.snapshot import BUCKETS, DestinationSnapshot, PackedRows, Transaction, hashes

WIDE_BYTES: Final = np.uint64(2_000)  # a row of more counts as several

Values = dict[str, str]  # literals by column
Counts = Mapping[bytes, Counter[bytes]]  # packed rows, and how many there are of each, by packed key


def sums(blocks: Iterable[PackedRows]) -> Words:
    """For each bucket how many rows it has, the sum of their hashes, and their weight: 1 for each WIDE_BYTES begun."""
    found: Words = np.zeros((3, BUCKETS), np.uint64)
    for block in blocks:
        at = block.buckets()
        found[0] += np.bincount(at, minlength=BUCKETS).astype(np.uint64)
        np.add.at(found[1], at, hashes(block.rows))
        np.add.at(found[2], at, np.asarray(pc.binary_length(block.rows)).astype(np.uint64) // WIDE_BYTES + 1)
    return found


def unequal(ours: Words, theirs: Words, weight_max: int) -> tuple[Ints, bool]:
    """The buckets that differ, at least one and else so many that neither side's rows weigh more than `weight_max`; and
    whether that leaves out some."""
    found = np.flatnonzero((ours != theirs).any(axis=0))
    sizes = np.cumsum(np.maximum(ours[2], theirs[2])[found])
    chosen = found[: max(1, int(np.searchsorted(sizes, weight_max, "right")))]
    return chosen, len(chosen) < len(found)


def counts(blocks: Iterable[PackedRows]) -> Counts:
    found: dict[bytes, Counter[bytes]] = {}
    for block in blocks:
        for key, row in zip(block.keys.to_pylist(), block.rows.to_pylist(), strict=True):
            found.setdefault(key, Counter())[row] += 1
    return found


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that is not the same on both sides. `packed_key`: of the destination's format; `upstream`, `destination`:
    the columns that differ; None: this side does not have the row."""

    packed_key: bytes
    key: Values
    upstream: Values | None
    destination: Values | None


def differences(format_: Format, shape: TableShape, ours: Counts, theirs: Counts) -> Iterator[RowDifference]:
    """In the order of the packed keys. `ours`: upstream's. Rows of the same key are compared with one another."""
    none: Counter[bytes] = Counter()
    for packed in sorted({*ours, *theirs}):
        upstream, destination = ours.get(packed, none), theirs.get(packed, none)
        pairs = zip_longest((upstream - destination).elements(), (destination - upstream).elements())
        for one, other in pairs:
            values = [None if row is None else tuple(map(_text, format_.split(row))) for row in (one, other)]
            mine, there = values
            some = mine or there or ()
            at = [at for at in range(len(some)) if mine is None or there is None or mine[at] != there[at]]
            key = {shape.columns[at]: some[at] for at in shape.key}
            both = (None if row is None else {shape.columns[i]: row[i] for i in at} for row in values)
            yield RowDifference(packed, key, *both)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "NULL" if value is None else repr(value)


def changes(codec: Codec, format_: Format, ours: Counts, theirs: Counts, ts: int) -> SegmentWork:
    """What makes rows of the destination equal to `ours`. `theirs`: its rows of the same keys."""
    make = _net if codec.shape.foldable else _ordered
    return make(codec.shape, format_, ours, theirs, ts)


def _net(shape: TableShape, format_: Format, ours: Counts, theirs: Counts, ts: int) -> SegmentWork:
    """The net rows that make rows of a table with a key equal. Upstream has at most one for each key."""
    rows: dict[bytes, bytes | None] = {}
    for packed in sorted({*ours, *theirs}):
        if ours.get(packed) != theirs.get(packed):
            rows[packed] = next(iter(ours.get(packed, ())), None)
    kinds = [Kind.DELETE if row is None else Kind.UPDATE if key in theirs else Kind.INSERT for key, row in rows.items()]
    images = [[key] if row is None else [] for key, row in rows.items()]
    columns = NetColumns(
        format_,
        pa.array(list(rows), pa.binary()),
        np.array(kinds, np.int64),
        pa.array(list(rows.values()), pa.binary()),
        pa.array(images, IMAGES),
    )
    return SegmentWork(ts, ts, (Folded(shape, columns),), Ordered(()), len(rows), 0)


def _ordered(shape: TableShape, format_: Format, ours: Counts, theirs: Counts, ts: int) -> SegmentWork:
    """The changes that make rows of a table without a key equal: first those to delete, then those to insert."""
    wanted, there = (Counter({row: side[row][row] for row in side}) for side in (ours, theirs))
    kept = [
        *((Kind.DELETE, format_.split(row), None) for row in (there - wanted).elements()),
        *((Kind.INSERT, None, format_.split(row)) for row in (wanted - there).elements()),
    ]
    ordered = (KeyChange(shape, kind, old, new, ts, number) for number, (kind, old, new) in enumerate(kept))
    return SegmentWork(ts, ts, (), Ordered(tuple(ordered)), len(kept), 0)


ROWS_MAX: Final = 100_000  # of unequal buckets, which are compared one by one; fewer if they are wide


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found of one table. `rows`: upstream's; `buckets`: those whose rows were compared one by one; `is_cut`:
    so much differs that not all of it was."""

    rows: int
    differences: tuple[RowDifference, ...] = ()
    buckets: Ints | Sequence[int] = field(default=(), repr=False, compare=False)
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the destination. `sources`: the tables upstream whose rows it has; several if they are merged.
    `versions`: these tables in the schema's view. `stop`: ends a comparison with Stopped. `rate`: how many rows a
    second are read on average; 0: as many as possible."""

    sources: Sequence[Source]
    upstream: Upstream
    there: DestinationSnapshot
    stop: threading.Event = field(default_factory=threading.Event)
    versions: Sequence[TableVersions] = ()
    rate: int = 0

    @property
    def table_id(self) -> int:
        """The table's id upstream; the lowest one if several tables are merged."""
        return self.sources[0].info.id

    @property
    def codec(self) -> Codec:
        return self.sources[0].codec

    def compared(self) -> Compared:
        """Compare all rows. Raises UpstreamError, DestinationError, DecodeError."""
        with self.upstream.at(self.there.commit_ts) as upstream:
            ours, theirs = sums(self._upstream(upstream)), sums(self._until_stopped(self.there.rows(self.codec)))
            rows = int(ours[0].sum())
            buckets, is_cut = unequal(ours, theirs, ROWS_MAX)
            if not len(buckets):
                return Compared(rows)
            found = differences(
                self.there.format,
                self.codec.shape,
                *self._both(buckets, self._upstream(upstream), self._until_stopped(self.there.rows(self.codec))),
            )
            return Compared(rows, tuple(found), buckets, is_cut)

    def repair(self, compared: Compared) -> int:
        """Make the rows that differ equal. Return how many rows were written or deleted. Rows that upstream does not
        have are deleted first, because a server may take their keys for equal to others. If more differs than was
        found, one range of the table after another is made equal then. Raises Stopped between two transactions."""
        if not self._finds_by_key():
            return self._transact(partial(self._whole, buckets=compared.buckets))
        count = self._found(compared)
        # Rows with other unique keys may have exchanged their values with rows of any range.
        return count + (self._ranges() if compared.is_cut and not self.codec.shape.secondary_unique else 0)

    def _found(self, compared: Compared) -> int:
        surplus = [one.packed_key for one in compared.differences if one.upstream is None]
        others = [one.packed_key for one in compared.differences if one.upstream is not None]
        keys = [*surplus, *others]
        # Rows with other unique keys may have exchanged their values.
        step = max(len(keys), 1) if self.codec.shape.secondary_unique else KEYS_MAX
        parts = [keys[begin : begin + step] for begin in range(0, len(keys), step)]
        return sum(self._transact(partial(self._by_key, keys=part)) for part in parts)

    def _ranges(self) -> int:
        """Make the rows that upstream has equal, each range at the position of its own transaction. The stream has as
        much time in between as a range takes."""
        count = 0
        for source in self.sources:
            with self.upstream.at(self.there.commit_ts) as snapshot:
                ranges = list(snapshot.divided(source))
            for of in ranges:
                began_s = time.monotonic()
                count += self._transact(partial(self._by_range, source=source, of=of))
                if self.stop.wait(time.monotonic() - began_s):
                    raise Stopped("stopped")
        return count

    def _finds_by_key(self) -> bool:
        """Whether upstream's rows can be read by the keys that the destination has: not if rules replace values."""
        of = self.codec.layout
        return bool(self.codec.shape.foldable) and all(
            source.codec.rules is None and all(of.targets[at].id in source.info.columns_by_id for at in of.key.columns)
            for source in self.sources
        )

    def _transact(self, sides: Callable[[Transaction], tuple[Counts, Counts]]) -> int:
        count = 0

        def body(at: Transaction) -> None:
            nonlocal count
            work = changes(self.codec, self.there.format, *sides(at), at.commit_ts)
            count = work.change_count
            if count:
                at.write(work)

        self.there.transact(body)
        return count

    def _by_key(self, at: Transaction, keys: Sequence[bytes]) -> tuple[Counts, Counts]:
        literals = self.there.key_literals(keys)
        with self.upstream.at(at.commit_ts) as upstream:
            ours = counts(
                self._packed(columns).with_keys(keys)
                for source in self.sources
                for columns in upstream.with_keys(source, literals)
            )
        return ours, counts(rows.with_keys(keys) for rows in at.with_keys(self.codec, keys))

    def _by_range(self, at: Transaction, source: Source, of: Range) -> tuple[Counts, Counts]:
        with self.upstream.at(at.commit_ts) as upstream:
            ours = counts(map(self._packed, upstream.read(source, of)))
        keys = list(ours)
        parts = (keys[begin : begin + KEYS_MAX] for begin in range(0, len(keys), KEYS_MAX))
        return ours, counts(rows.with_keys(part) for part in parts for rows in at.with_keys(self.codec, part))

    def _whole(self, at: Transaction, buckets: Any) -> tuple[Counts, Counts]:
        with self.upstream.at(at.commit_ts) as upstream:
            return self._both(buckets, self._upstream(upstream), at.rows(self.codec))

    @staticmethod
    def _both(buckets: Any, ours: Iterable[PackedRows], theirs: Iterable[PackedRows]) -> tuple[Counts, Counts]:
        return counts(rows.in_buckets(buckets) for rows in ours), counts(rows.in_buckets(buckets) for rows in theirs)

    def _upstream(self, snapshot: Snapshot) -> Iterator[PackedRows]:
        for source in self.sources:
            yield from self._until_stopped(map(self._packed, snapshot.read(source, Range())))

    def _until_stopped(self, blocks: Iterable[PackedRows]) -> Iterator[PackedRows]:
        for block in blocks:
            if self.stop.wait(len(block.keys) / self.rate if self.rate else 0):
                raise Stopped("stopped")
            yield block

    def _packed(self, columns: Sequence[Any]) -> PackedRows:
        return PackedRows.of(self.there.format, self.codec, columns)


def passes(error: BinlogError) -> bool:
    """Whether another try, with a new snapshot, may succeed."""
    upstream, moved = UpstreamDown | SnapshotGone | DefinitionChanged, SchemaMoved | PositionMoved
    return isinstance(error, upstream | moved | DestinationDown | Transient)
