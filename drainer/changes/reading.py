"""Read the rows of one layout together. A reader is made once and used for every batch. Pure.

A row is accepted only if its columns, in the table's order and with the usual flags, end exactly at the end of the row.
Every other row is left to the general decoder (row/codec.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.fields import Raw, Reader, duration_reader, reader_of
from drainer.changes.vector import Buffer, Ints, Mask, zigzag
from drainer.row.column_type import TypeClass
from drainer.row.layout import HandlePart, Layout, Stored

_ROWID = b"\x08\x01\x08"  # its id, and the flag of a whole number
_WORD = 8


@dataclass(frozen=True, slots=True)
class _Column:
    """One stored column: either `name` and NULL, or `prefix` and a payload."""

    stored: Stored
    reader: Reader
    name: bytes
    prefix: bytes


@dataclass
class _Found:
    """The values of one column in one image of the rows: raw decoded values, where they are NULL, and which rows lack
    the column.
    """

    raw: Raw
    null: Mask
    missing: Mask


# The columns of one image of the rows, by target.
_Image = dict[int, _Found]


class RowReader:
    """Reads inserted, updated and deleted rows of a layout."""

    def __init__(self, layout: Layout, columns: list[_Column], handle: list[Reader | None]) -> None:
        self._layout = layout
        self._columns = columns
        self._handle = handle
        self._not_null = frozenset(layout.key.columns)

    @classmethod
    def of(cls, layout: Layout) -> RowReader | None:
        """Make a reader. None if such rows cannot be read together: values of another column's type, or a DECIMAL
        without a known number of digits.
        """
        if any(target.old_column_id for target in layout.targets):
            return None
        columns = []
        for stored in layout.stored:
            reader = reader_of(stored.kind, stored.type_class)
            if reader is None:
                return None
            prefix = reader.named(stored.id)
            name = prefix[: len(prefix) - len(reader.prefix)]
            if max(len(prefix), len(name) + 1) > _WORD:
                return None
            columns.append(_Column(stored, reader, name + b"\x00", prefix))
        handle = [_handle_reader(part) for part in layout.handle]
        return None if None in handle else cls(layout, columns, handle)

    def insert(self, buffer: Buffer, at: Ints, end: Ints, wanted: Sequence[int]) -> tuple[Mask, list[Any]]:
        """Read inserted rows. Return (rows that were read, the wanted targets' columns for these rows)."""
        at, good, given = self._read_handle(buffer, at)
        good &= at < end
        at = _skip_empty(buffer, at, end)
        image, at, good = self._image(buffer, at, good, wanted, insert=True, strict=())
        at, _ = self._behind_rowid(buffer, at)
        for target, found in given.items():
            if target in wanted:
                own = image.get(target)
                image[target] = found if own is None or self._layout.handle[0].kind is None else _or(own, found)
        good &= at == end
        return good, self._arrays(buffer, image, good, wanted)

    def update(
        self, buffer: Buffer, at: Ints, end: Ints, wanted_old: Sequence[int], wanted: Sequence[int]
    ) -> tuple[Mask, list[Any], list[Any]]:
        """Read updated rows. Return (rows that were read, columns of the old image, columns of the new one)."""
        good = np.ones(len(at), np.bool_)
        # Both images have the same columns, so the old image must also have those that no caller wants.
        every = range(len(self._layout.targets))
        old, at, good = self._image(buffer, at, good, wanted_old, insert=True, strict=every)
        at, had = self._behind_rowid(buffer, at)
        new, at, good = self._image(buffer, at, good, wanted, insert=True, strict=every)
        at, has = self._behind_rowid(buffer, at)
        good &= (at == end) & (had == has)
        return good, self._arrays(buffer, old, good, wanted_old), self._arrays(buffer, new, good, wanted)

    def delete(self, buffer: Buffer, at: Ints, end: Ints, wanted: Sequence[int]) -> tuple[Mask, list[Any]]:
        """Read deleted rows; the result is that of `insert`."""
        good = at < end
        at = _skip_empty(buffer, at, end)
        image, at, good = self._image(buffer, at, good, wanted, insert=False, strict=wanted)
        at, _ = self._behind_rowid(buffer, at)
        good &= at == end
        return good, self._arrays(buffer, image, good, wanted)

    def _read_handle(self, buffer: Buffer, at: Ints) -> tuple[Ints, Mask, _Image]:
        """Read the datums in front of an inserted row, and return what they fill, by target."""
        good = np.ones(len(at), np.bool_)
        given: _Image = {}
        none = np.zeros(len(at), np.bool_)
        for part, reader in zip(self._layout.handle, self._handle, strict=True):
            assert reader is not None
            good &= buffer.starts_with(at, reader.prefix)
            at = buffer.clip(at + len(reader.prefix))
            raw, size = reader.read(buffer, at)
            good &= size > 0
            at = buffer.clip(at + size)
            if part.target >= 0:
                # In a handle a whole number is signed, even for an unsigned column.
                raw = (raw[0].view(np.uint64),) if part.kind is None and part.unsigned else raw
                given[part.target] = _Found(raw, none, none)
        return at, good, given

    def _image(
        self, buffer: Buffer, at: Ints, good: Mask, wanted: Sequence[int], *, insert: bool, strict: Sequence[int]
    ) -> tuple[_Image, Ints, Mask]:
        """Read all columns of one image, from `at` on. `strict`: the targets that must all be present."""
        found: _Image = {}
        for column in self._columns:
            stored = column.stored
            if insert and not stored.in_insert:
                continue
            is_wanted = stored.target in wanted and stored.target >= 0
            there = buffer.starts_with(at, column.prefix)
            raw, size = column.reader.read(buffer, np.minimum(at + len(column.prefix), buffer.limit))
            step = np.where(size > 0, size + len(column.prefix), -1)
            if there.all():
                null = missing = ~there
                good = good & (step > 0)
                moved = step
            else:
                null = buffer.starts_with(at, column.name)
                missing = ~(there | null)
                if is_wanted and (stored.not_null or stored.target in self._not_null):
                    good = good & ~null
                if stored.target in strict:
                    good = good & ~missing
                good = good & (~there | (step > 0))
                moved = np.where(there, step, np.where(null, len(column.name), 0))
            if is_wanted:
                found[stored.target] = _Found(raw, null, missing)
            at = np.clip(at + moved, 0, buffer.limit)
        return found, at, good

    def _behind_rowid(self, buffer: Buffer, at: Ints) -> tuple[Ints, Mask]:
        """Return where rows without a clustered key end, and which of them have a rowid at the end."""
        none = np.zeros(len(at), np.bool_)
        if not self._layout.has_rowid:
            return at, none
        there = buffer.starts_with(at, _ROWID)
        if not there.any():
            return at, none
        size = buffer.uvarint(buffer.clip(at + len(_ROWID)))[1]
        there &= size > 0
        return buffer.clip(np.where(there, at + len(_ROWID) + size, at)), there

    def _arrays(self, buffer: Buffer, image: _Image, good: Mask, wanted: Sequence[int]) -> list[Any]:
        """Return Arrow arrays of the wanted targets, for the rows that were read."""
        whole = bool(good.all())
        count = len(good) if whole else int(good.sum())
        arrays = []
        readers = {c.stored.target: c.reader for c in self._columns}
        for target in wanted:
            kind = self._layout.targets[target].column_type.decoded_type
            default = pa.scalar(self._layout.targets[target].default, kind)
            found = image.get(target)
            if found is None:
                arrays.append(pa.repeat(default, count))
                continue
            raw = found.raw if whole else tuple(part[good] for part in found.raw)
            null, missing = (found.null, found.missing) if whole else (found.null[good], found.missing[good])
            array = readers[target].arrow(buffer, raw, null | missing)
            if default.is_valid and missing.any():
                array = pc.if_else(pa.array(missing), default, array)
            arrays.append(array)
        return arrays


def _or(own: _Found, given: _Found) -> _Found:
    """Return the row's own value, or the handle's if the row lacks one. Under a collation a handle holds a sort key."""
    if not own.missing.any():
        return own
    raw = tuple(np.where(own.missing, b, a) for a, b in zip(own.raw, given.raw, strict=True))
    return _Found(raw, own.null, np.zeros(len(own.null), np.bool_))


def _skip_empty(buffer: Buffer, at: Ints, end: Ints) -> Ints:
    """Skip a row without columns, which is a single byte 00."""
    return np.where((at + 1 == end) & (buffer.octets[at] == 0), end, at)


def _handle_reader(part: HandlePart) -> Reader | None:
    if part.kind is None:
        return Reader(b"\x08", _int_handle, _no_column)
    if part.type_class is TypeClass.TIME:
        return duration_reader()
    return reader_of(part.kind, part.type_class)


def _int_handle(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    raw, size = buffer.uvarint(at)
    return (zigzag(raw),), size


def _no_column(buffer: Buffer, raw: Raw, null: Mask) -> Any:
    raise NotImplementedError("a handle's number is read by its column")
