"""Orders the events of a transaction that arrives in pieces as if it were one segment, with the same events.

A single piece shows neither whether another piece changes the same row, nor which events of other pieces must precede
its own. So the pieces are read several times:

    1. Find the rows that several pieces change, by a hash of table and handle key: 8 bytes for each row.
    2. If there are such rows, take their changes out and keep them in memory, to be merged together.
    3. For each class of events that may occur (row_events: deletes, updates, inserts), write the events of that class:
       of each piece those of the remaining rows, and after the last piece those of the rows that were taken out.

An update that moves a row from a key that is taken out to one that is not, or the reverse, is divided into a delete and
an insert; merging would do the same. Two rows with the same hash are taken out without need. This costs memory, but
does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.vector import Mask
from drainer.dispatch.row_events import DELETES, INSERTS, UPDATES, RowEvents
from drainer.protocol.table import Table

Digests = npt.NDArray[np.uint64]
_TableKey = tuple[object, ...]  # Table.key
_Held = dict[_TableKey, Digests]  # the digests of rows that several pieces change, ascending

# Odd, so that multiplication maps different numbers to different numbers.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class OrderedPart:
    """The next part to write: the events of `segment` of one class, or all of them in their order if the class is None.
    `is_piece`: the segment may not have all changes of its transactions."""

    segment: ChangeSegment
    class_: int | None = None
    is_piece: bool = False


PartsOf = Callable[[Callable[[], Iterable[ChangeSegment]]], Iterable[OrderedPart]]


@dataclass(slots=True)
class _Seen:
    """What the survey found about one transaction. `first`, `last`: its first and last piece. `kinds`: the kinds of its
    changes of tables with a handle key. `has_unkeyed`: it also changes tables without a handle key. `digests`: the
    changed rows of each table with a handle key in each piece. `held`: the rows that several pieces change, and
    `withheld`: the changes of these rows."""

    transaction: tuple[int, int]  # commit_ts, start_ts
    first: int
    last: int
    kinds: set[Kind] = field(default_factory=set)
    has_unkeyed: bool = False
    digests: dict[_TableKey, list[Digests]] = field(default_factory=dict)
    held: _Held = field(default_factory=dict)
    withheld: list[Changes] = field(default_factory=list)

    @property
    def classes(self) -> Sequence[int | None]:
        """Return the classes that the transaction's events may have: an update may become a delete and an insert, and a
        delete and an insert may become an update. None: a single piece has them all, in their order."""
        if self.first == self.last:
            return [None]
        if Kind.UPDATE in self.kinds or {Kind.INSERT, Kind.DELETE} <= self.kinds:
            return [DELETES, UPDATES, INSERTS]
        found = {DELETES} if self.has_unkeyed else set()
        return sorted(found | {INSERTS if kind is Kind.INSERT else DELETES for kind in self.kinds})

    def hold(self) -> None:
        """Find the rows that several pieces change."""
        for key, parts in self.digests.items():
            every = np.sort(np.concatenate(parts))
            again = np.unique(every[1:][every[1:] == every[:-1]])
            if len(again):
                self.held[key] = again
        self.digests.clear()


def in_order(works: Callable[[], Iterable[ChangeSegment]], events: RowEvents) -> Iterator[OrderedPart]:
    """Yield the parts in the order in which they must be written. `works`: as in batch.work.Pieces; every call must
    return the same pieces. A piece has changes of one transaction, whose pieces follow one another. Raises what `works`
    raises."""
    seen = _survey(works(), events)
    for one in seen:
        one.hold()
    _gather(works, events, seen)
    for stages in _passes(seen):
        for number, segment in enumerate(works()):
            for one, class_ in stages:
                if one.first <= number <= one.last:
                    kept = _segment(_parted(segment, events, one.held)[0], segment)
                    if kept.changes:
                        yield OrderedPart(kept, class_, is_piece=True)
                if number == one.last and one.withheld:
                    yield OrderedPart(_segment(one.withheld, segment), class_, is_piece=True)


def loaded_parts(works: Callable[[], Iterable[ChangeSegment]]) -> Iterator[OrderedPart]:
    """Yield the parts of a range of a first load: rows with different keys, so their order does not matter."""
    for segment in works():
        yield OrderedPart(segment, is_piece=True)


def _survey(works: Iterable[ChangeSegment], events: RowEvents) -> list[_Seen]:
    """Read all pieces and collect what each transaction changes."""
    found: list[_Seen] = []
    for number, segment in enumerate(works):
        of_piece: dict[_TableKey, list[Digests]] = {}
        for changes in filter(len, segment.changes):
            transaction = int(changes.commit_ts[0]), int(changes.start_ts[0])
            if not found or found[-1].transaction != transaction:
                found.append(_Seen(transaction, number, number))
            seen, table = found[-1], events.table(changes.codec)
            seen.last = number
            if not table.handle:
                seen.has_unkeyed = True
                continue
            seen.kinds.add(changes.kind)
            its = [one for one in _digests_of(changes, table) if one is not None]
            of_piece.setdefault(table.key, []).extend(its)
        for key, parts in of_piece.items():
            found[-1].digests.setdefault(key, []).append(np.unique(np.concatenate(parts)))
    return found


def _gather(works: Callable[[], Iterable[ChangeSegment]], events: RowEvents, seen: Sequence[_Seen]) -> None:
    """Take out the changes of the rows that several pieces change."""
    if not any(one.held for one in seen):
        return
    begin = 0
    for number, segment in enumerate(works()):
        for one in seen:
            if one.first <= number <= one.last:
                taken = _parted(segment, events, one.held)[1]
                one.withheld += [replace(changes, order=changes.order + begin) for changes in taken]
        begin += max((int(one.order.max(initial=-1)) for one in segment.changes), default=-1) + 1
    for one in seen:
        one.withheld = _renumbered(one.withheld) if one.withheld else []


def _passes(seen: Iterable[_Seen]) -> list[list[tuple[_Seen, int | None]]]:
    """Return for each pass over the pieces which classes of which transactions are written. Transactions that follow
    one another share one reading of the pieces; a class that needs an earlier piece begins another."""
    found: list[list[tuple[_Seen, int | None]]] = []
    for one in seen:
        for class_ in one.classes:
            if found and found[-1][-1][0].last < one.first:
                found[-1].append((one, class_))
            else:
                found.append([(one, class_)])
    return found


def _parted(segment: ChangeSegment, events: RowEvents, held: _Held) -> tuple[list[Changes], list[Changes]]:
    """Split the changes into those of rows that are not held, and those of held rows."""
    kept: list[Changes] = []
    taken: list[Changes] = []
    for changes in filter(len, segment.changes):
        table = events.table(changes.codec)
        rows = held.get(table.key)
        stays, goes = ([changes], []) if rows is None else _divided(changes, table, rows)
        kept += stays
        taken += goes
    return kept, taken


def _divided(changes: Changes, table: Table, held: Digests) -> tuple[list[Changes], list[Changes]]:
    """Split changes into those of other rows and those of held rows."""
    none = np.zeros(len(changes), np.bool_)
    old, new = (none if one is None else np.isin(one, held) for one in _digests_of(changes, table))
    if changes.kind is not Kind.UPDATE:
        goes = old | new
        return _some(changes, ~goes), _some(changes, goes)
    kept = [
        *_some(changes, ~old & ~new),
        *(replace(one, kind=Kind.INSERT, old=None) for one in _some(changes, old & ~new)),
        *(replace(one, kind=Kind.DELETE, new=None) for one in _some(changes, new & ~old)),
    ]
    taken = [
        *_some(changes, old & new),
        *(replace(one, kind=Kind.DELETE, new=None) for one in _some(changes, old & ~new)),
        *(replace(one, kind=Kind.INSERT, old=None) for one in _some(changes, new & ~old)),
    ]
    return kept, taken


def _some(changes: Changes, chosen: Mask) -> list[Changes]:
    if bool(chosen.all()):
        return [changes]
    return [changes.take(chosen)] if bool(chosen.any()) else []


def _digests_of(changes: Changes, table: Table) -> list[Digests | None]:
    """Return the digest of the row of each change's old and new image."""
    return [None if image is None else _digests(image, table.handle) for image in (changes.old, changes.new)]


def _digests(columns: Columns, handle: Sequence[int]) -> Digests:
    """Hash each row's handle key. Equal values have equal digests within this process."""
    found: Any = np.uint64(0)
    with np.errstate(over="ignore"):
        for column_index in handle:
            column = columns[column_index]
            if pa.types.is_integer(column.type):
                values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
            else:
                values = np.fromiter(map(hash, column.to_pylist()), np.int64, len(column)).view(np.uint64)
            found = (found ^ values) * _FACTOR
            found ^= found >> np.uint64(29)
    return np.asarray(found, np.uint64)


def _renumbered(changes: Sequence[Changes]) -> list[Changes]:
    """Renumber the changes: `order` becomes the number among these changes."""
    numbers = np.unique(np.concatenate([one.order for one in changes]), return_inverse=True)[1]
    parts = np.split(numbers, np.cumsum([len(one) for one in changes])[:-1])
    return [replace(one, order=order) for one, order in zip(changes, parts, strict=True)]


def _segment(changes: Sequence[Changes], like: ChangeSegment) -> ChangeSegment:
    return replace(like, changes=tuple(changes), change_count=sum(map(len, changes)))
