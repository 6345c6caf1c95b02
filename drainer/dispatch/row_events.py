"""Converts changes into the events that messages are made of: one event for each row in a transaction, in order.

Within a transaction, the events of a table with a handle key are ordered: deletes, then updates, then inserts. So a
unique value is free before another row uses it. The events of a table without a handle key keep the order of its
statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from drainer.batch.work import Kind
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.net import concatenated
from drainer.changes.vector import Ints
from drainer.dispatch.column_selector import ALL_COLUMNS, ColumnSelectors, Selection
from drainer.dispatch.merge import Events, TableChanges, differ, merged, unmerged
from drainer.protocol.encoder import CompiledTables
from drainer.protocol.table import ColumnFlag, RowChanges, Table, table_of
from drainer.row.codec import Codec
from drainer.row.layout import Layout

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
