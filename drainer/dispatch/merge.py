"""Merges changes to one event for each row and transaction: a binlog has a change for each statement, messages do not.

Every change removes its old image and adds its new one. A row is identified by its handle key, byte for byte. Of all
changes of a row in one transaction, the first removal and the last addition count:

    insert, update             insert of the last image
    update, update             update from the first image to the last
    insert, delete             nothing
    delete, insert             update
    update of the handle key   delete of the old row and insert of the new one

Rows of tables without a handle key are not merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Mask, Words


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
