"""Fold the changes of one table to the last state of each key (rules 9, 10, 12 and 21).

A state has the fields of order.key_states.NetState, as columns. A batch may be split anywhere into parts. The states of
its parts are merged by the same rule: the later row, the earlier beginning, and every image that was written or read
before that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError

from drainer.batch.work import Kind
from drainer.changes.decode import Changes, Columns
from drainer.changes.key import IDENTITY_BYTES, Keys, concat_keys, keys_from, keys_of, ranks
from drainer.changes.vector import Ints, Mask, Words
from drainer.order.key_states import NetState, in_one_order
from drainer.row.format import Format
from drainer.row.key import FoldKey

RemovedImages = dict[int, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class States:
    """The states of one table's keys. Each key occurs once, in the order of `identity` (row.key.identity). `first`: the
    kind of its first change (plan.Kind), at (first_ts, first_sequence). `row`: its last row, packed, of (last_ts,
    last_sequence); NULL when the key is dead. `image`: the key as last written, if it can be written in several ways
    (FoldKey.imaged), else None. `gone`: place → the images to delete, for keys that have any. `of_number`: the key is
    one whole number."""

    identity: Any
    first: Ints
    first_ts: Words
    first_sequence: Ints
    last_ts: Words
    last_sequence: Ints
    row: Any
    image: Any | None
    gone: RemovedImages
    of_number: bool

    def __len__(self) -> int:
        return len(self.identity)

    def take(self, chosen: Ints) -> States:
        """Return the chosen states; `chosen` must ascend."""
        of = pa.array(chosen)
        gone = {}
        if self.gone:
            place = {int(old): new for new, old in enumerate(chosen.tolist())}
            gone = {place[at]: images for at, images in self.gone.items() if at in place}
        return States(
            self.identity.take(of),
            self.first[chosen],
            self.first_ts[chosen],
            self.first_sequence[chosen],
            self.last_ts[chosen],
            self.last_sequence[chosen],
            self.row.take(of),
            None if self.image is None else self.image.take(of),
            gone,
            self.of_number,
        )


@dataclass
class _Events:
    """The events of keys: a row appears, remains or disappears. Lists of arrays, one for each block."""

    keys: list[Keys] = field(default_factory=list)
    place: list[Ints] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)  # the block's Changes
    index: list[Ints] = field(default_factory=list)  # the change's index in the block
    first: list[Kind] = field(default_factory=list)
    image: list[Any | None] = field(default_factory=list)
    # Old images of updates that do not change the key, with the block they belong to.
    read: list[tuple[int, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Events grouped by key, keys in order. `key_of`: the key's number for each event; `first`, `last`: the first and
    last event for each key.
    """

    key_of: Ints
    first: Ints
    last: Ints


def _grouped(keys: Keys, *place: Any) -> _Groups:
    """Group the events. `place`: arrays by which events of one key are ordered, the least important first."""
    rank = ranks(keys)
    order = np.lexsort((*place, rank))
    ranked = rank[order]
    begins = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    starts = np.flatnonzero(begins)
    key_of = np.empty(len(order), np.int64)
    key_of[order] = np.cumsum(begins) - 1
    return _Groups(key_of, order[starts], order[np.append(starts[1:], len(order)) - 1])


def net_of(key: FoldKey, changes: Sequence[Changes], format_: Format) -> States | None:
    """Return the states of the keys that some changes of one table touch; `order` is the order of the changes. None if
    there are no changes.

    Raises DecodeError, which names no row, for a value that cannot be written and for a NULL in the key."""
    events = _events(key, changes, format_)
    if not events.keys:
        return None
    keys = concat_keys(events.keys)
    sizes = [len(one) for one in events.keys]
    groups = _grouped(keys, np.concatenate(events.place))
    source = np.repeat(np.arange(len(sizes)), sizes)
    index = np.concatenate(events.index)
    first = np.repeat([int(kind) for kind in events.first], sizes)
    meta = _meta(changes, events)
    row = _rows(changes, events, source[groups.last], index[groups.last], format_)
    gone, image = _gone(key, events, groups, row, sizes)
    return States(
        keys.identity.take(pa.array(groups.last)),
        first[groups.first],
        meta[0][groups.first],
        meta[1][groups.first],
        meta[0][groups.last],
        meta[1][groups.last],
        row,
        image,
        gone,
        keys.numbers is not None,
    )


def _meta(changes: Sequence[Changes], events: _Events) -> tuple[Words, Ints]:
    """Return (commit_ts, sequence) of every event."""
    pairs = list(zip(events.changes, events.index, strict=True))
    commit_ts = np.concatenate([changes[of].commit_ts[index] for of, index in pairs])
    return commit_ts, np.concatenate([changes[of].sequence[index] for of, index in pairs])


def _events(key: FoldKey, changes: Sequence[Changes], format_: Format) -> _Events:
    events = _Events()

    def add(of: int, kind: Kind, keys: Keys, place: Ints, index: Ints, image: Any | None) -> None:
        if len(keys):
            events.keys.append(keys)
            events.place.append(place)
            events.changes.append(of)
            events.index.append(index)
            events.first.append(kind)
            events.image.append(image)

    for of, one in enumerate(changes):
        every, place = np.arange(len(one)), one.order * 2 + 1
        if one.kind is Kind.DELETE:
            old, image = _keyed(key, one, one.old, format_)
            add(of, Kind.DELETE, old, place, every, image)
            continue
        new, image = _keyed(key, one, one.new, format_ if key.imaged else None)
        if one.kind is Kind.INSERT:
            add(of, Kind.INSERT, new, place, every, image)
            continue
        old, _ = _keyed(key, one, one.old, None)
        stays = _equal(old, new)
        moved = np.flatnonzero(~stays)
        if moved.size:  # a change of the key is a delete of the old key and an insert of the new one
            _, left = _keyed(key, one, one.old, format_)
            add(of, Kind.DELETE, _some(old, moved), place[moved] - 1, moved, _taken(left, moved))
            add(of, Kind.INSERT, _some(new, moved), place[moved], moved, _taken(image, moved))
        kept = every if not moved.size else np.flatnonzero(stays)
        add(of, Kind.UPDATE, _some(new, kept) if moved.size else new, place[kept], kept, _taken(image, kept))
        if key.imaged and len(kept):
            events.read.append((len(events.keys) - 1, _taken(_keyed(key, one, one.old, format_)[1], kept)))
    return events


def _keyed(key: FoldKey, one: Changes, columns: Columns | None, images: Format | None) -> tuple[Keys, Any | None]:
    """Return the keys of one image of the changes, and the same as the destination compares them."""
    assert columns is not None
    column_types = one.column_types
    for at in key.columns:
        if columns[at].null_count:
            number = int(np.argmin(columns[at].is_valid().to_numpy(zero_copy_only=False)))
            shape = one.shape
            place = f"`{shape.schema}`.`{shape.table}` (table id {shape.table_id}, commit_ts {one.commit_ts[number]})"
            raise DecodeError(f"row of {place}: key", offset=0, detail=f"{key.name} has a NULL")
    image = None
    if images is not None:
        image = images.packed_keys([column_types[at] for at in key.columns], [columns[at] for at in key.columns])
    return keys_of(key, column_types, columns), image


def _equal(a: Keys, b: Keys) -> Mask:
    if a.numbers is not None and b.numbers is not None:
        found: Mask = a.numbers == b.numbers
        return found
    same: Mask = pc.equal(a.identity, b.identity).to_numpy(zero_copy_only=False)
    return same


def _some(keys: Keys, chosen: Ints) -> Keys:
    numbers = None if keys.numbers is None else keys.numbers[chosen]
    return Keys(keys.identity.take(pa.array(chosen)), numbers, keys.signed)


def _taken(column: Any | None, chosen: Ints) -> Any | None:
    return None if column is None else column.take(pa.array(chosen))


def _rows(changes: Sequence[Changes], events: _Events, block: Ints, index: Ints, format_: Format) -> Any:
    """Return each key's last row, packed; NULL if the last event deleted the row. `block`, `index`: where each key's
    last row is.
    """
    place = np.full(len(block), -1, np.int64)
    found, count = [], 0
    for number, of in enumerate(events.changes):
        one = changes[of]
        mine = np.flatnonzero(block == number)
        if events.first[number] is Kind.DELETE or not mine.size:
            continue
        chosen = index[mine]
        assert one.new is not None
        whole = len(chosen) == len(one) and bool((chosen == np.arange(len(one))).all())
        columns = one.new if whole else [column.take(pa.array(chosen)) for column in one.new]
        found.append(format_.packed_rows(one.column_types, columns))
        place[mine] = np.arange(count, count + len(mine))
        count += len(mine)
    if not found:
        return pa.nulls(len(block), pa.binary())
    rows = pa.concat_arrays(found)
    if len(found) == 1 and count == len(block):
        return rows
    return rows.take(pa.array(place, mask=place < 0))


def _gone(
    key: FoldKey, events: _Events, groups: _Groups, row: Any, sizes: Sequence[int]
) -> tuple[RemovedImages, Any | None]:
    """Return (the images to delete, the last image of each key). An image that will be written is not deleted."""
    dead = row.is_null().to_numpy(zero_copy_only=False)
    begins = np.cumsum([0, *sizes])
    if not key.imaged:
        gone: RemovedImages = {}
        for block, image in enumerate(events.image):
            mine = np.flatnonzero(dead & (groups.last >= begins[block]) & (groups.last < begins[block + 1]))
            if image is not None and mine.size:
                images = image.take(pa.array(groups.last[mine] - begins[block])).to_pylist()
                gone |= {at: (one,) for at, one in zip(mine.tolist(), images, strict=True)}
        return gone, None
    images = pa.concat_arrays([*events.image, *(image for _, image in events.read)])
    read = [groups.key_of[begins[block] : begins[block + 1]] for block, _ in events.read]
    last = images.take(pa.array(groups.last))
    return _other_images(images, np.concatenate([groups.key_of, *read]), groups.last, dead), last


def _other_images(images: Any, key_of: Ints, last: Ints, dead: Mask) -> RemovedImages:
    """Return for each key its images except the last one; if the key is dead, also the last one. `last`: the place of
    each key's last image."""
    coded = images.dictionary_encode()
    code = coded.indices.to_numpy()
    goes = (code != code[last][key_of]) | dead[key_of]
    if not goes.any():
        return {}
    pairs = np.unique(np.stack([key_of[goes], code[goes]]), axis=1)
    found: dict[int, list[bytes]] = {}
    for at, image in zip(pairs[0].tolist(), coded.dictionary.take(pa.array(pairs[1])).to_pylist(), strict=True):
        found.setdefault(at, []).append(image)
    return {at: in_one_order(some) for at, some in found.items()}  # type: ignore[misc]


def states_from(rows: Sequence[NetState], format_: Format, *, of_number: bool) -> States:
    """Make states from states that were computed one by one. `of_number`: as in States, if the identities are whole
    numbers.
    """
    columns = list(zip(*sorted(rows), strict=True))
    identity, first, first_ts, first_sequence, last_ts, last_sequence, row, image, gone = columns
    imaged = any(one is not None for one in image)
    return States(
        pa.array(identity, pa.binary()),
        np.array(first, np.int64),
        np.array(first_ts, np.uint64),
        np.array(first_sequence, np.int64),
        np.array(last_ts, np.uint64),
        np.array(last_sequence, np.int64),
        pa.array([None if one is None else format_.pack(one) for one in row], pa.binary()),
        pa.array([format_.pack_key(one) for one in image], pa.binary()) if imaged else None,
        {at: tuple([format_.pack_key(one) for one in some]) for at, some in enumerate(gone) if some},
        of_number and all(len(one) == IDENTITY_BYTES for one in identity),
    )


def merge(parts: Sequence[States]) -> States:
    """Merge the states of several parts of a batch."""
    if len(parts) == 1:
        return parts[0]
    identity = pa.concat_arrays([one.identity for one in parts])
    of_number = all(one.of_number for one in parts)
    keys = keys_from(identity, of_number=of_number)
    names = ("first", "first_ts", "first_sequence", "last_ts", "last_sequence")
    first, first_ts, first_sequence, last_ts, last_sequence = (
        np.concatenate([getattr(one, name) for one in parts]) for name in names
    )
    groups = _grouped(keys, last_sequence, last_ts)
    begun = _grouped(keys, first_sequence, first_ts).first
    of = pa.array(groups.last)
    row = pa.concat_arrays([one.row for one in parts]).take(of)
    gone, image = _merged_images(parts, groups, row)
    return States(
        identity.take(of),
        first[begun],
        first_ts[begun],
        first_sequence[begun],
        last_ts[groups.last],
        last_sequence[groups.last],
        row,
        image,
        gone,
        of_number,
    )


def _merged_images(parts: Sequence[States], groups: _Groups, row: Any) -> tuple[RemovedImages, Any | None]:
    every = [(at + begin, gone) for begin, one in _with_begin(parts) for at, gone in one.gone.items()]
    if parts[0].image is None:
        # All images of such a key are equal; the image is deleted if the key is dead.
        dead = row.is_null().to_numpy(zero_copy_only=False)
        keys = groups.key_of[[at for at, _ in every]].tolist() if every else []
        return {key: gone for key, (_, gone) in zip(keys, every, strict=True) if dead[key]}, None
    images = pa.concat_arrays([one.image for one in parts])
    more = [(at, image) for at, gone in every for image in gone]
    all_images = pa.concat_arrays([images, pa.array([image for _, image in more], pa.binary())])
    key_of = np.concatenate([groups.key_of, groups.key_of[np.array([at for at, _ in more], np.int64)]])
    dead = row.is_null().to_numpy(zero_copy_only=False)
    return _other_images(all_images, key_of, groups.last, dead), images.take(pa.array(groups.last))


def _with_begin(parts: Sequence[States]) -> list[tuple[int, States]]:
    begin, found = 0, []
    for one in parts:
        found.append((begin, one))
        begin += len(one)
    return found
