"""Compares the rows of a table upstream and at the destination, and makes the changes that make them equal. Pure.

Both sides are rows as the destination gets them, packed in its format, so equal values are equal bytes and no collation
and no order of a server matters. Each side is read once, in any order: the hash of each row is added to the bucket of
its key, and the buckets are compared. Only the rows of unequal buckets are read again, and compared one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Folded, KeyChange, Kind, Ordered, SegmentWork, TableShape
from drainer.changes.net import IMAGES, NetColumns
from drainer.changes.vector import Ints, Words
from drainer.row.codec import Codec
from drainer.row.format import Format
from drainer.sink.snapshot import BUCKETS, PackedRows, hashes

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
