"""Compares a table of the destination with upstream's, both as they were at the destination's position, and repairs it.

The position is stored in the destination, so a consistent snapshot of it knows its TSO, and upstream is read at that
TSO: the two sides are the same moment, while the stream goes on. A repair is a transaction that keeps the position as
it is until it ends, reads the rows that differ on both sides once more, and writes what is different then. The drainer
need not be stopped: its next transaction waits for that one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from binlog.errors import BinlogError

from drainer.apply.progress import Stopped
from drainer.changes.vector import Ints
from drainer.ranges.comparison import Counts, RowDifference, changes, counts, differences, sums, unequal
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
from drainer.row.codec import Codec
from drainer.schema.view import TableVersions
from drainer.sink.errors import DestinationDown, PositionMoved, SchemaMoved, Transient
from drainer.sink.snapshot import DestinationSnapshot, PackedRows, Transaction

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
