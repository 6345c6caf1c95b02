"""Converts changes into the events that messages are made of: one event for each row in a transaction, in order.

Within a transaction, the events of a table with a handle key are ordered: deletes, then updates, then inserts. So a
unique value is free before another row uses it. The events of a table without a handle key keep the order of its
statements.

Of all changes of a row in one transaction, the first removal of an image and the last addition of one count
(docs/dispatch.md):

    insert, update             insert of the last image
    update, update             update from the first image to the last
    insert, delete             nothing
    delete, insert             update
    update of the handle key   delete of the old row and insert of the new one
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.net import concatenated
from drainer.changes.vector import Ints, Mask, Words
from drainer.dispatch.rules import ALL_COLUMNS, ColumnSelectors, Selection
from drainer.protocol.encoder import CompiledTables
from drainer.protocol.table import ColumnFlag, RowChanges, Table, table_of
from drainer.row.codec import Codec
from drainer.row.layout import Layout


@dataclass(frozen=True, slots=True)
class TableChanges:
    """All changes of one table: first the inserts, then the updates, then the deletes. `old`: images of the updates,
    then of the deletes. `new`: images of the inserts, then of the updates. `transaction`: numbers that ascend in
    upstream's order. `order`: as in Changes. It and the timestamps are parallel to the changes."""

    inserts: int
    updates: int
    deletes: int
    transaction: Ints
    order: Ints
    commit_ts: Words
    start_ts: Words
    old: Columns
    new: Columns

    def __len__(self) -> int:
        return self.inserts + self.updates + self.deletes

    @property
    def old_at(self) -> Ints:
        """Return the index of each change's image in `old`; -1 if it has no old image."""
        indexes = np.arange(-self.inserts, len(self) - self.inserts)
        return np.maximum(indexes, -1)

    @property
    def new_at(self) -> Ints:
        indexes = np.arange(len(self))
        indexes[self.inserts + self.updates :] = -1
        return indexes


@dataclass(frozen=True, slots=True)
class Events:
    """Events as pairs of changes. `removing` and `adding`: the change whose old or new image an event has, -1 for
    none."""

    removing: Ints
    adding: Ints

    def __len__(self) -> int:
        return len(self.removing)


def unmerged(changes: TableChanges) -> Events:
    """Return one event for each change."""
    each = np.arange(len(changes))
    return Events(np.where(changes.old_at < 0, -1, each), np.where(changes.new_at < 0, -1, each))


def merged(changes: TableChanges, handle: Sequence[int], *, rejoin: bool = False) -> Events:
    """Merge the changes of each row in a transaction. `handle`: indexes of the handle key's columns. `rejoin`: an
    update of the handle key stays one event, if no other change of the transaction touches a row with either key."""
    whole = unmerged(changes)
    codes = _merging(changes, handle)
    if codes is None:
        return whole
    old_codes, new_codes, touched = codes
    # One element for each image: an old one is removed, a new one is added. They are sorted by transaction and row, of
    # one row by the changes' order, and of one change the removal first. What a transaction does to a row is then in
    # the first and the last element of a group: the row existed before if the first removes it, and exists afterwards
    # if the last adds it.
    chosen = np.flatnonzero(touched)
    removing, adding = (chosen[at[chosen] >= 0] for at in (whole.removing, whole.adding))
    change = np.concatenate([removing, adding])
    is_added = np.repeat([0, 1], [len(removing), len(adding)])
    row = np.concatenate([old_codes[removing], new_codes[adding]])
    by_row = np.lexsort((is_added, changes.order[change], row, changes.transaction[change]))
    change, is_added, row = change[by_row], is_added[by_row], row[by_row]
    begins = np.ones(len(change), np.bool_)
    begins[1:] = (row[1:] != row[:-1]) | (np.diff(changes.transaction[change]) != 0)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(change)) - 1
    found = Events(np.where(is_added[first], -1, change[first]), np.where(is_added[last], change[last], -1))
    found = _some(found, np.flatnonzero((found.removing >= 0) | (found.adding >= 0)))
    if rejoin:
        found = _rejoined(found)
    rest = _some(whole, np.flatnonzero(~touched))
    return Events(np.concatenate([rest.removing, found.removing]), np.concatenate([rest.adding, found.adding]))


def differ(old: Columns, new: Columns, column_indexes: Sequence[int], old_at: Ints, new_at: Ints) -> Mask:
    """Return whether any of these columns differs between the images at these indexes. NULL equals NULL."""
    found = np.zeros(len(old_at), np.bool_)
    for column_index in column_indexes:
        one, other = old[column_index].take(pa.array(old_at)), new[column_index].take(pa.array(new_at))
        same = pc.fill_null(pc.equal(one, other), False).to_numpy(zero_copy_only=False)
        if one.null_count and other.null_count:
            both = pc.and_(pc.is_null(one), pc.is_null(other))
            same = same | both.to_numpy(zero_copy_only=False)
        found |= ~same
    return found


def _merging(changes: TableChanges, handle: Sequence[int]) -> tuple[Ints, Ints, Mask] | None:
    """Return the row number of each change's old and new image, and which changes must be merged. None if no change
    must be."""
    old_at, new_at = changes.old_at, changes.new_at
    updates = np.arange(changes.inserts, changes.inserts + changes.updates)
    moved = updates[differ(changes.old, changes.new, handle, old_at[updates], new_at[updates])]
    per_transaction = np.bincount(changes.transaction) if len(changes) else np.zeros(1, np.int64)
    if per_transaction.max() <= 1 and not len(moved):
        return None
    codes = row_codes([pa.concat_arrays([changes.old[at], changes.new[at]]) for at in handle])
    old_codes = np.where(old_at < 0, -1, codes[old_at])
    new_codes = np.where(new_at < 0, -1, codes[new_at + changes.updates + changes.deletes])
    # A number for each (transaction, row); a transaction that has one of them twice must be merged.
    row = changes.transaction * (codes.max(initial=0) + 1) + np.where(new_at < 0, old_codes, new_codes)
    in_order = np.sort(row)
    twice = in_order[1:][in_order[1:] == in_order[:-1]]
    if not len(twice) and not len(moved):
        return None
    touched = np.zeros(len(per_transaction), np.bool_)
    touched[twice // (codes.max(initial=0) + 1)] = True
    touched[changes.transaction[moved]] = True
    return old_codes, new_codes, touched[changes.transaction]


def row_codes(columns: Sequence[Any]) -> Ints:
    """Return a number for each row: rows have the same number if their values are the same in all columns. NULL counts
    as a value."""
    found: Ints | None = None
    for column in columns:
        encoded = column.dictionary_encode()
        codes = pc.add(pc.fill_null(encoded.indices, -1), 1).to_numpy(zero_copy_only=False).astype(np.int64)
        if found is None:
            found = codes
        else:
            found = np.unique(found * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1]
    assert found is not None, "a key has a column"
    return found


def _rejoined(events: Events) -> Events:
    """Turn a delete and an insert that come from one change back into an update."""
    deletes, inserts = np.flatnonzero(events.adding < 0), np.flatnonzero(events.removing < 0)
    both, left, right = np.intersect1d(events.removing[deletes], events.adding[inserts], return_indices=True)
    kept = np.ones(len(events), np.bool_)
    kept[deletes[left]] = kept[inserts[right]] = False
    rest = _some(events, np.flatnonzero(kept))
    return Events(np.concatenate([rest.removing, both]), np.concatenate([rest.adding, both]))


def _some(events: Events, chosen: Ints) -> Events:
    return Events(events.removing[chosen], events.adding[chosen])


# Bits of RowChanges.order, lowest first: the change and which half of it (delete, insert); the class in the
# transaction; the transaction.
_HALF_BITS: Final = 33
_CLASS_BITS: Final = 2
DELETES: Final = 0  # and all events of tables without a handle key
UPDATES: Final = 1
INSERTS: Final = 2
_CLASSES: Final = {Kind.DELETE: DELETES, Kind.UPDATE: UPDATES, Kind.INSERT: INSERTS}


class RowEvents:
    """Converts changes to events. Caches the tables of codecs it has seen. Not safe for use by several threads.

    `raw`: updates of unique keys, and of handle keys that are not clustered, stay updates (TiCDC's
    output-raw-change-event). Otherwise they become a delete and an insert. `selectors`: which columns events have.
    """

    def __init__(self, *, raw: bool = False, selectors: ColumnSelectors = ALL_COLUMNS) -> None:
        self._raw = raw
        self._selectors = selectors
        # By ids of layouts, which are not valid in another process: this cache is not pickled.
        self._tables = CompiledTables[tuple[Layout, Table, Selection]]()

    def of(self, segment: ChangeSegment) -> list[RowChanges]:
        """Convert changes to events. `order` of the result is the position of each event among all events; it ascends
        in each RowChanges. Events of one transaction and table have the same `start_ts` and `commit_ts`."""
        transactions = _transactions(segment.changes)
        groups: dict[int, list[tuple[Changes, Ints]]] = {}
        for one, numbers in zip(segment.changes, transactions, strict=True):
            groups.setdefault(id(one.codec.layout), []).append((one, numbers))
        return [events for group in groups.values() for events in self._table_events(group)]

    def table(self, codec: Codec) -> Table:
        """Return the table of a codec's rows, with all columns that the rows have."""
        return self._known(codec)[1]

    def selection(self, codec: Codec) -> Selection:
        """Return the columns of that table that messages have. Raises DispatchError if a column selector leaves no key
        of the table."""
        return self._known(codec)[2]

    def _known(self, codec: Codec) -> tuple[Layout, Table, Selection]:
        return self._tables.get(id(codec.layout), lambda: self._made(codec))

    def _made(self, codec: Codec) -> tuple[Layout, Table, Selection]:
        layout, at = codec.layout, codec.at
        column_types = [(target.id, target.column_type) for target in layout.targets]
        made = table_of(at.schema, at.current, column_types, at.current_version, at.at_version)
        # Keep the layout alive, so that no other object gets its id.
        return layout, made, self._selectors.select(made)

    def _table_events(self, group: Sequence[tuple[Changes, Ints]]) -> Iterable[RowChanges]:
        _, table, selection = self._known(group[0][0].codec)
        changes = _gathered(group)
        if not table.handle:
            events = unmerged(changes)
        else:
            is_clustered = table.info.pk_is_handle or table.info.is_common_handle
            events = merged(changes, table.handle, rejoin=self._raw and not is_clustered)
        if not self._raw:
            # The columns, besides those of the handle key, whose update becomes a delete and an insert.
            unique = [at for at, column in enumerate(table.columns) if column.flags & ColumnFlag.UNIQUE_KEY]
            events = _split(events, changes, unique)
        yield from _made(selection, events, changes)


def _transactions(changes: Sequence[Changes]) -> list[Ints]:
    """Return the number of each change's transaction. Numbers ascend in upstream's order."""
    if not changes:
        return []
    size = max(int(one.order.max(initial=-1)) for one in changes) + 1
    # `order` numbers the changes of all tables: with the timestamps stored under it, a transaction begins where one of
    # them differs from that of the change before. A number that no change has, of an ignored row, is left out.
    commits, starts = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    there = np.zeros(size, np.bool_)
    for one in changes:
        commits[one.order], starts[one.order], there[one.order] = one.commit_ts, one.start_ts, True
    orders = np.flatnonzero(there)
    begins = np.zeros(len(orders), np.int64)
    begins[1:] = (np.diff(commits[orders]) != 0) | (np.diff(starts[orders]) != 0)
    numbers = np.zeros(size, np.int64)
    numbers[orders] = np.cumsum(begins)
    return [numbers[one.order] for one in changes]


def _gathered(group: Sequence[tuple[Changes, Ints]]) -> TableChanges:
    ordered = sorted(group, key=lambda pair: pair[0].kind)  # INSERT, UPDATE, DELETE
    counts = {kind: sum(len(one) for one, _ in ordered if one.kind is kind) for kind in Kind}
    column_types = ordered[0][0].column_types

    def columns(images: Iterable[Columns | None]) -> Columns:
        there = [one for one in images if one is not None]
        return tuple(
            concatenated([one[at] for one in there]) if there else pa.array([], column_type.decoded_type)
            for at, column_type in enumerate(column_types)
        )

    return TableChanges(
        counts[Kind.INSERT],
        counts[Kind.UPDATE],
        counts[Kind.DELETE],
        np.concatenate([numbers for _, numbers in ordered]),
        np.concatenate([one.order for one, _ in ordered]),
        np.concatenate([one.commit_ts for one, _ in ordered]),
        np.concatenate([one.start_ts for one, _ in ordered]),
        columns(one.old for one, _ in ordered),
        columns(one.new for one, _ in ordered),
    )


def _split(events: Events, changes: TableChanges, unique: Sequence[int]) -> Events:
    """Turn updates of a unique key into a delete and an insert."""
    updates = np.flatnonzero((events.removing >= 0) & (events.adding >= 0))
    old_at, new_at = changes.old_at[events.removing[updates]], changes.new_at[events.adding[updates]]
    split = updates[differ(changes.old, changes.new, unique, old_at, new_at)]
    if not len(split):
        return events
    removing, adding = events.removing.copy(), events.adding.copy()
    adding[split] = -1
    return Events(np.concatenate([removing, np.full(len(split), -1)]), np.concatenate([adding, events.adding[split]]))


def _made(selection: Selection, events: Events, changes: TableChanges) -> Iterable[RowChanges]:
    table, all_old, all_new = selection.table, selection.of(changes.old), selection.of(changes.new)
    removes, adds = events.removing >= 0, events.adding >= 0
    for kind, chosen in ((Kind.DELETE, removes & ~adds), (Kind.UPDATE, removes & adds), (Kind.INSERT, adds & ~removes)):
        removing, adding = events.removing[chosen], events.adding[chosen]
        if not len(removing):
            continue
        last = removing if kind is Kind.DELETE else adding
        halves = changes.order[last] * 2 + (kind is not Kind.DELETE)
        class_ = _CLASSES[kind] if table.is_keyed else DELETES
        order = changes.transaction[last] << (_HALF_BITS + _CLASS_BITS) | class_ << _HALF_BITS | halves
        if len(order) > 1 and not bool((np.diff(order) > 0).all()):
            by_order = np.argsort(order)
            order, removing, adding, last = order[by_order], removing[by_order], adding[by_order], last[by_order]
        old = None if kind is Kind.INSERT else _take_images(all_old, changes.old_at[removing])
        new = None if kind is Kind.DELETE else _take_images(all_new, changes.new_at[adding])
        yield RowChanges(table, kind, changes.commit_ts[last], changes.start_ts[last], order, old, new)


def _take_images(columns: Columns, indexes: Ints) -> Columns:
    """Return the images at these indexes. Copies nothing if these are consecutive."""
    first, count = int(indexes[0]), len(indexes)
    if int(indexes[-1]) - first == count - 1 and bool((np.diff(indexes) == 1).all()):
        return tuple(column.slice(first, count) for column in columns)
    wanted = pa.array(indexes)
    return tuple(column.take(wanted) for column in columns)


def transactions_of(events: RowChanges) -> Ints:
    """Return the number of each event's transaction."""
    return events.order >> (_HALF_BITS + _CLASS_BITS)


def class_of(events: RowChanges) -> int:
    """Return DELETES, UPDATES or INSERTS, the class of these events, which orders the events of a transaction. All
    events must have the same class, and there must be at least one."""
    return int(events.order[0]) >> _HALF_BITS & (1 << _CLASS_BITS) - 1


def halves_of(updates: RowChanges, chosen: Ints) -> tuple[RowChanges, RowChanges]:
    """Divide some updates into deletes and inserts, with the `order` of these classes in their transactions."""
    some = updates.take(chosen)
    made = []
    for kind in (Kind.DELETE, Kind.INSERT):
        order = some.order
        if updates.table.is_keyed:
            order = order & ~(3 << _HALF_BITS) | _CLASSES[kind] << _HALF_BITS
        order = order & ~1 | int(kind is Kind.INSERT)
        old, new = (some.old, None) if kind is Kind.DELETE else (None, some.new)
        made.append(RowChanges(some.table, kind, some.commit_ts, some.start_ts, order, old, new))
    return made[0], made[1]
