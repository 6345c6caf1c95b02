"""Fold changes to the last state of each key (rules 9, 10, 12 and 21). Pure.

A change is one or two events: a key's row appears (INSERT), remains (UPDATE) or disappears (DELETE). A change of the
key is a DELETE of the old key and an INSERT of the new one. The previous state of a key is not checked: an inserted row
replaces one under its key, and a deleted row may be missing.

A batch may be split anywhere into parts. The states of its parts are merged by the same rule: the later row, the
earlier beginning, and every image that was written or read before that row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Kind
from drainer.changes.key import ranks
from drainer.changes.vector import Ints, Mask, Words

IMAGES: Final = pa.list_(pa.binary())
_DELETE: Final = int(Kind.DELETE)


@dataclass(frozen=True, slots=True)
class KeyEvents:
    """Events, decoded together. `order`: of their changes, among all that are folded together; the two events of one
    change have different keys, and only events of one key are compared. `kind`: see work.Kind. `imaged`: the key can be
    written in several ways (FoldKey.imaged). `image`: the key as a destination matches it, of every event of an imaged
    key, and of every DELETE; else NULL. `read`: of an UPDATE of an imaged key, the key as it was before, else NULL;
    None if there are none. `rows`: from indexes of events to their rows, packed; it raises DecodeError for a value that
    cannot be written."""

    table: Ints
    identity: Any
    order: Ints
    commit_ts: Words
    sequence: Ints
    kind: Ints
    imaged: Mask
    image: Any
    read: Any | None
    rows: Callable[[Ints], Any]

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True, slots=True)
class States:
    """The states of keys. Each key occurs once, in the order of (`table`, `identity`): table id and row.key.identity.
    `first`: the kind of its first change, at (first_ts, first_sequence). `row`: its last row, packed, of (last_ts,
    last_sequence); NULL when the key is dead. `image`: the key as last written, if it can be written in several ways
    (FoldKey.imaged), else NULL. `gone`: the images to delete."""

    table: Ints
    identity: Any
    first: Ints
    first_ts: Words
    first_sequence: Ints
    last_ts: Words
    last_sequence: Ints
    row: Any
    image: Any
    gone: Any

    def __len__(self) -> int:
        return len(self.table)

    def take(self, chosen: Ints) -> States:
        """Return the chosen states; `chosen` must ascend."""
        of, columns = pa.array(chosen), (getattr(self, name) for name in STATES.names)
        return States(*(one[chosen] if isinstance(one, np.ndarray) else one.take(of) for one in columns))


# The columns of States as Arrow types; those of numbers are numpy arrays.
STATES: Final = pa.schema(
    [
        ("table", pa.int64()),
        ("identity", pa.binary()),
        ("first", pa.int64()),
        ("first_ts", pa.uint64()),
        ("first_sequence", pa.int64()),
        ("last_ts", pa.uint64()),
        ("last_sequence", pa.int64()),
        ("row", pa.binary()),
        ("image", pa.binary()),
        ("gone", IMAGES),
    ]
)
# nulls, because an array of Python values would load pandas (drainer.spark.startup.worker_imports).
NO_STATES: Final = States(
    *(np.zeros(0, str(of)) if pa.types.is_integer(of) else pa.nulls(0, of) for of in STATES.types)
)


class _Groups:
    """Elements grouped by key, keys in order. `key_of`: the key's number for each element; `first`, `last`: the first
    and last element of each key."""

    __slots__ = ("first", "key_of", "last")

    def __init__(self, table: Ints, rank: Words, *by: Any) -> None:
        """`by`: arrays by which the elements of one key are ordered, the least important first."""
        order = np.lexsort((*by, rank, table))
        tables, ranked = table[order], rank[order]
        begins = np.concatenate([[True], (ranked[1:] != ranked[:-1]) | (tables[1:] != tables[:-1])])
        starts = np.flatnonzero(begins)
        self.key_of: Ints = np.empty(len(order), np.int64)
        self.key_of[order] = np.cumsum(begins) - 1
        self.first: Ints = order[starts]
        self.last: Ints = order[np.append(starts[1:], len(order)) - 1]


def fold(parts: Sequence[KeyEvents]) -> States:
    """Return the states of the keys that some events touch. Raises as `KeyEvents.rows`."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return NO_STATES
    table, order, kind, imaged = (_joined(parts, name) for name in ("table", "order", "kind", "imaged"))
    commit_ts, sequence = _joined(parts, "commit_ts"), _joined(parts, "sequence")
    identity, image = concatenated([part.identity for part in parts]), concatenated([part.image for part in parts])
    groups = _Groups(table, ranks(table, identity), order)
    first, last = groups.first, groups.last
    dead: Mask = kind[last] == _DELETE
    # Of a key that is written in only one way, the image matters only if the key is dead.
    chosen = imaged.copy()
    chosen[last[dead]] = True
    images, key_of = [image.filter(pa.array(chosen))], [groups.key_of[chosen]]
    begin = 0
    for part in parts:
        if part.read is not None:
            read = part.read.is_valid()
            images.append(part.read.filter(read))
            key_of.append(groups.key_of[begin : begin + len(part)][read.to_numpy(zero_copy_only=False)])
        begin += len(part)
    shown = image.take(pa.array(np.where(imaged[last], last, 0), mask=~imaged[last]))
    return States(
        table[last],
        identity.take(pa.array(last)),
        kind[first],
        commit_ts[first],
        sequence[first],
        commit_ts[last],
        sequence[last],
        _rows(parts, last, dead),
        shown,
        _gone(concatenated(images), np.concatenate(key_of), shown, dead),
    )


def merge(parts: Sequence[States]) -> States:
    """Merge the states of several parts of a batch."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NO_STATES
    table, first_ts, first_sequence = (_joined(parts, name) for name in ("table", "first_ts", "first_sequence"))
    last_ts, last_sequence = _joined(parts, "last_ts"), _joined(parts, "last_sequence")
    identity, row, image, gone = (
        pa.concat_arrays([getattr(part, name) for part in parts]) for name in ("identity", "row", "image", "gone")
    )
    rank = ranks(table, identity)
    groups = _Groups(table, rank, last_sequence, last_ts)
    last, begun = groups.last, _Groups(table, rank, first_sequence, first_ts).first
    of = pa.array(last)
    row, shown = row.take(of), image.take(of)
    written = image.is_valid()
    images = concatenated([image.filter(written), gone.flatten()])
    key_of = [groups.key_of[written.to_numpy(zero_copy_only=False)], groups.key_of[pc.list_parent_indices(gone)]]
    dead = row.is_null().to_numpy(zero_copy_only=False)
    return States(
        table[last],
        identity.take(of),
        _joined(parts, "first")[begun],
        first_ts[begun],
        first_sequence[begun],
        last_ts[last],
        last_sequence[last],
        row,
        shown,
        _gone(images, np.concatenate(key_of), shown, dead),
    )


def _joined(parts: Sequence[Any], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in parts])


def concatenated(arrays: Sequence[Any]) -> Any:
    """Return one array of all; there is at least one."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _rows(parts: Sequence[KeyEvents], last: Ints, dead: Mask) -> Any:
    """Return each key's last row, packed; NULL if the key is dead. `last`: each key's last event."""
    # Events are numbered through all parts; the part of an event is the first whose end is above its number. The keys
    # are grouped by part, so that each part packs its rows at once; `row_of` then leads from a key to its packed row.
    ends = np.cumsum([len(part) for part in parts])
    live = np.flatnonzero(~dead)
    of = np.searchsorted(ends, last[live], side="right")
    by_part = np.argsort(of, kind="stable")
    bounds = np.searchsorted(of[by_part], np.arange(len(parts) + 1))
    row_of = np.full(len(last), -1, np.int64)
    found = []
    for number, part in enumerate(parts):
        mine = live[by_part[bounds[number] : bounds[number + 1]]]
        if mine.size:
            found.append(part.rows(last[mine] - (ends[number] - len(part))))
            row_of[mine] = np.arange(bounds[number], bounds[number + 1])
    if not found:
        return pa.nulls(len(last), pa.binary())
    rows = concatenated(found)
    if len(found) == 1 and len(rows) == len(last):
        return rows
    return rows.take(pa.array(row_of, mask=dead))


def _gone(images: Any, key_of: Ints, last: Any, dead: Mask) -> Any:
    """Return for each key the images to delete: those of `images`, whose keys are `key_of`, that differ from the one
    that is written last; all of them if the key is dead. `last`: of each key, NULL if it is written in only one way."""
    found: dict[int, set[bytes]] = {}
    if len(images):
        other = pc.fill_null(pc.not_equal(images, last.take(pa.array(key_of))), False)
        goes = other.to_numpy(zero_copy_only=False) | dead[key_of]
        for key, image in zip(key_of[goes].tolist(), images.filter(pa.array(goes)).to_pylist(), strict=True):
            found.setdefault(key, set()).add(image)
    lengths = np.zeros(len(dead) + 1, np.int32)
    values: list[bytes] = []
    for key in sorted(found):
        values += sorted(found[key])
        lengths[key + 1] = len(found[key])
    return pa.ListArray.from_arrays(pa.array(np.cumsum(lengths, dtype=np.int32)), pa.array(values, pa.binary()))
