"""Find which rows gain and lose values of secondary unique keys, as columns (rule 21). Pure.

These are the same claims that drainer.order.claims notes row by row. After each change the row has its new values. If a
value or the row's key has changed, the row first lost all of its old values. No row claims a value that contains a
NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from drainer.batch.work import Kind
from drainer.changes.decode import Changes, Columns
from drainer.changes.key import compared
from drainer.changes.unique_values import compared_differ, differ, values_differ, values_of, without_null
from drainer.changes.vector import Ints, Mask, Words
from drainer.row.claimed import OtherKey
from drainer.row.form import Form
from drainer.row.key import FoldKey

# Indexes in an array are 32-bit numbers.
BLOCK_BYTES_MAX: Final = 512 << 20


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims on values of one unique key, as columns of one length without NULLs. `value`: the value as compared, one
    column for each column of the key. `shown`: the value as the row has it, if the comparison is coarser than
    upstream's, else None. `key`: the row's key, as compared. A claim belongs to the change (commit_ts, start_ts,
    sequence). `has`: True if the row has the value after the change, False if it lost the value."""

    value: tuple[Any, ...]
    shown: tuple[Any, ...] | None
    key: tuple[Any, ...]
    commit_ts: Words
    start_ts: Words
    sequence: Ints
    has: Mask

    def __len__(self) -> int:
        return len(self.has)

    @property
    def nbytes(self) -> int:
        """The bytes of all columns of the values and keys."""
        return sum(column.nbytes for column in (*self.value, *(self.shown or ()), *self.key))

    def take(self, chosen: Ints) -> Claims:
        """Return the chosen claims."""
        return Claims(
            _taken(self.value, chosen),
            None if self.shown is None else _taken(self.shown, chosen),
            _taken(self.key, chosen),
            self.commit_ts[chosen],
            self.start_ts[chosen],
            self.sequence[chosen],
            self.has[chosen],
        )


def concat_claims(blocks: Sequence[Claims]) -> list[Claims]:
    """Return the claims on one unique key in fewer blocks: one block for each combination of column types, or several
    if the claims exceed the size of an array.
    """
    found: dict[tuple[Any, ...], list[list[Claims]]] = {}
    sizes: dict[tuple[Any, ...], int] = {}  # bytes of the last group for each combination
    for one in blocks:
        types = tuple(column.type for column in (*one.value, *one.key))
        groups = found.setdefault(types, [])
        sizes[types] = sizes.get(types, 0) + one.nbytes
        if not groups or sizes[types] > BLOCK_BYTES_MAX:
            groups.append([])
            sizes[types] = one.nbytes
        groups[-1].append(one)
    return [_concat(group) for groups in found.values() for group in groups]


def _concat(parts: Sequence[Claims]) -> Claims:
    if len(parts) == 1:
        return parts[0]

    def columns(images: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple(pa.concat_arrays(some) for some in zip(*images, strict=True))

    shown = [one.shown for one in parts if one.shown is not None]
    return Claims(
        columns(one.value for one in parts),
        columns(shown) if shown else None,
        columns(one.key for one in parts),
        *(
            np.concatenate([getattr(one, name) for one in parts])
            for name in ("commit_ts", "start_ts", "sequence", "has")
        ),
    )


def _taken(columns: Sequence[Any], chosen: Ints) -> tuple[Any, ...]:
    of = pa.array(chosen)
    return tuple(column.take(of) for column in columns)


def old_places(others: Sequence[OtherKey]) -> tuple[int, ...]:
    """Return the columns of old images that are needed to find lost values."""
    return tuple(sorted({at for key in others for at in key.places}))


def claims_of(key: FoldKey, others: Sequence[OtherKey], changes: Sequence[Changes]) -> list[list[Claims]]:
    """Return for each key of `others` the claims of some changes of one table, in blocks.

    Raises DecodeError, which names no row, for a value that cannot be written."""
    found: list[list[Claims]] = [[] for _ in others]
    for one in changes if others else ():
        forms = one.forms
        if one.kind is Kind.DELETE:
            _note(found, key, others, _Image(one, forms, one.old, None), has=False)
            continue
        _note(found, key, others, _Image(one, forms, one.new, None), has=True)
        if one.kind is Kind.UPDATE:
            lost = _lost(key, others, one)
            if lost.size:
                _note(found, key, others, _Image(one, forms, one.old, lost), has=False)
    return found


class _Image:
    """The columns of the old or new images of some changes; each is read once."""

    def __init__(self, changes: Changes, forms: Sequence[Form], columns: Columns | None, chosen: Ints | None) -> None:
        assert columns is not None
        self.changes = changes
        self.forms = forms
        self.chosen = np.arange(len(changes)) if chosen is None else chosen
        self._columns = columns
        self._whole = chosen is None
        self._taken: dict[int, Any] = {}

    def column(self, at: int) -> Any:
        if self._whole:
            return self._columns[at]
        found = self._taken.get(at)
        if found is None:
            found = self._taken[at] = self._columns[at].take(pa.array(self.chosen))
        return found


def _note(found: list[list[Claims]], key: FoldKey, others: Sequence[OtherKey], image: _Image, *, has: bool) -> None:
    one = image.changes
    keys = [compared(image.forms[at], image.column(at), same) for at, same in zip(key.columns, key.same, strict=True)]
    for claims, other in zip(found, others, strict=True):
        columns = [image.column(at) for at in other.places]
        value, shown = values_of(other, [image.forms[at] for at in other.places], columns)
        meta = one.commit_ts[image.chosen], one.start_ts[image.chosen], one.sequence[image.chosen]
        noted = Claims(value, shown, tuple(keys), *meta, np.full(len(image.chosen), has))
        there = without_null(columns)
        if there is not None:
            noted = noted.take(np.flatnonzero(there))
        if len(noted):
            claims.append(noted)


def _lost(key: FoldKey, others: Sequence[OtherKey], one: Changes) -> Ints:
    """Return which updates lose their old values: those that change any value or the row's key."""
    assert one.old is not None and one.new is not None
    places = sorted({*key.columns, *old_places(others)})
    differs = np.zeros(len(one), np.bool_)
    for at in places:
        differs |= differ(one.old[at], one.new[at])
    maybe = np.flatnonzero(differs)
    if not maybe.size:
        return maybe
    forms = one.forms
    old, new = _Image(one, forms, one.old, maybe), _Image(one, forms, one.new, maybe)
    lost = np.zeros(len(maybe), np.bool_)
    for at, same in zip(key.columns, key.same, strict=True):
        lost |= compared_differ(forms[at], old.column(at), new.column(at), same)
    for other in others:
        images = ([image.column(at) for at in other.places] for image in (old, new))
        lost |= values_differ(other, [forms[at] for at in other.places], *images)
    return maybe[lost]
