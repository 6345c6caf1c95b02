"""Dispatch by conflict: rows that meet in any unique value share a partition, and others are spread.

Within one segment of one table, two events belong together when they are of one transaction, or when an image of the
one has a value of a primary or unique key that an image of the other has. All events that belong together, over any
number of steps, go to one partition: that which `index-value` gives for the smallest hash among their handle keys. An
event that belongs to no other goes where `index-value` puts it. A table without a handle key, or with a unique key that
cannot be compared here (a prefix, a virtual column, a collation other than binary ones, a float), is in one partition.
So is what a transaction does to a table when it comes in pieces: all of it belongs together, and no piece has it all.
Such a transaction is a range of its own, with resolved events before and behind it.

Guaranteed, between one resolved event and the next:

- all events of a row, of a unique value, and of a transaction on the table are in one partition, in commit order;
- the partitions do not depend on how the segment was read or cut, so a segment that is written again, over the same
  range of commit_ts, is written to the same partitions.

Not guaranteed over a resolved event: in the next segment a row may be in another partition. So

- the producer writes a resolved event to every partition behind each segment (it may do so more often), and
- a consumer applies what lies behind a resolved event of R in any partition only when it has applied all rows up to R
  of every partition. In between it may apply partitions in parallel, in any order.

Repetitions of a producer that writes at least once may be cut into other segments, and so lie in other partitions; with
this method messages are to be written exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.types import UNSPECIFIED

from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Mask
from drainer.dispatch.merge import row_codes
from drainer.dispatch.partition import Hashes, row_hashes
from drainer.dispatch.row_events import transactions_of
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Table
from drainer.row.form import Form
from drainer.row.key import compared_as, comparison


def conflict_hashes(events: Sequence[RowChanges], zone: tzinfo) -> list[Hashes]:
    """Of all events of one table in a segment: their hashes, parallel to `events`."""
    table = events[0].table
    keys = [_unique_keys(one.table) for one in events]
    if any(of is None for of in keys) or not table.handle:
        return table_hashes(events, zone)
    own = np.concatenate([row_hashes(one.table, one.table.handle, one.image, len(one), zone) for one in events])
    transactions = np.unique(np.concatenate([transactions_of(one) for one in events]), return_inverse=True)[1]
    lowest = np.full(int(transactions.max(initial=-1)) + 1, np.iinfo(np.uint32).max, np.uint32)
    np.minimum.at(lowest, transactions, own)
    nodes, values = _edges(events, [of or {} for of in keys], transactions)
    label = components(len(lowest), nodes, values)
    smallest = np.full(len(lowest), np.iinfo(np.uint32).max, np.uint32)
    np.minimum.at(smallest, label, lowest)
    whole = smallest[label[transactions]]
    return np.split(whole, np.cumsum([len(one) for one in events])[:-1])


def table_hashes(events: Sequence[RowChanges], zone: tzinfo) -> list[Hashes]:
    """All in the table's one partition, parallel to `events`: what needs no other event, for those that are not all
    there."""
    return [row_hashes(one.table, (), one.image, len(one), zone) for one in events]


def components(count: int, nodes: Ints, values: Ints) -> Ints:
    """Of `count` nodes the least node that each hangs together with; `nodes` and `values`: what each edge joins."""
    label = np.arange(count)
    if not len(values):
        return label
    of_value = np.empty(int(values.max()) + 1, np.int64)
    while True:
        before = label
        of_value.fill(count)
        np.minimum.at(of_value, values, label[nodes])
        label = label.copy()
        np.minimum.at(label, nodes, of_value[values])
        np.minimum.at(label, before, label)
        label = label[label]
        if np.array_equal(label, before):
            return label


def _unique_keys(table: Table) -> dict[int, tuple[int, ...]] | None:
    """Index id → places of its columns; None where one cannot be compared here."""
    info, found = table.info, {}
    for index in info.unique_indexes():
        columns = info.index_columns(index)
        if any(not column.is_virtual and column.name not in table.places for column in columns):
            continue  # by a column selector: no reader has a key that needs it
        if any(part.length != UNSPECIFIED for part in index.columns):
            return None
        if any(column.name not in table.places or comparison(column.type) is None for column in columns):
            return None
        found[index.id] = tuple(table.places[column.name] for column in columns)
    return found


def _edges(
    events: Sequence[RowChanges], keys: Sequence[dict[int, tuple[int, ...]]], transactions: Ints
) -> tuple[Ints, Ints]:
    """(transaction, value) of every value of a unique key that an image has and that is not NULL."""
    begins = np.cumsum([0] + [len(one) for one in events])
    nodes, values, used = [], [], 0
    for key in sorted({key for of in keys for key in of}):
        parts: list[list[Any]] = []
        of_part: list[Ints] = []
        for number, (one, places) in enumerate(zip(events, keys, strict=True)):
            for image in (one.old, one.new) if key in places else ():
                if image is not None:
                    parts.append(_compared(one.table, places[key], image))
                    of_part.append(transactions[begins[number] : begins[number + 1]])
        columns = [pa.concat_arrays(list(same)) for same in zip(*parts, strict=True)]
        codes, whole = row_codes(columns), _whole(columns)
        nodes.append(np.concatenate(of_part)[whole])
        values.append(codes[whole] + used)
        used += int(codes.max(initial=0)) + 1
    if not nodes:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(nodes), np.concatenate(values)


def _whole(columns: Sequence[Any]) -> Mask:
    """Rows without a NULL: others collide with none."""
    found = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        if column.null_count:
            found &= pc.is_valid(column).to_numpy(zero_copy_only=False)
    return found


def _compared(table: Table, places: Sequence[int], image: Columns) -> list[Any]:
    """The columns as bytes, the same for values that a key holds to be the same, whatever version wrote them."""
    found = []
    for place in places:
        show = _comparable(table.columns[place].form)
        encoded = image[place].dictionary_encode()
        shown = [None if value is None else show(value) for value in encoded.dictionary.to_pylist()]
        found.append(pa.array(shown, pa.binary()).take(encoded.indices))
    return found


def _comparable(form: Form) -> Callable[[Any], bytes]:
    same = comparison(form.kind)
    assert same is not None, "a key that cannot be compared has its table in one partition"
    compare = compared_as(form, same)

    def shown(value: Any) -> bytes:
        found = value if compare is None else compare(value)
        return found if isinstance(found, bytes) else str(found).encode()

    return shown
