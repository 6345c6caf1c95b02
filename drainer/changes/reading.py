"""Read the rows of one layout together. A reader is made once and used for every batch. Pure.

A row is accepted only if its columns, in the table's order and with the usual flags, end exactly at the end of the row.
Every other row is left to the general decoder (row/codec.py).

The `read` of a column's Reader returns (raw, size of the payload) at many offsets. Size 0 means that the bytes are not
in the usual form. `raw` holds arrays with one element for each row, which `arrow` converts to a column for the rows
that were read. A row's element may be replaced by one that was read elsewhere (a clustered key's column, which is
stored in front of the row).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.decimal import BYTES_OF_DIGITS, DIGITS, decode_digits
from binlog.tidb.json import Code
from binlog.tidb.types import FieldType
from binlog.tidb.varint import encode_varint

from drainer.changes.vector import Buffer, Ints, Mask, zigzag
from drainer.row.column_type import TypeClass, decoded_type, flag_of, is_signed
from drainer.row.layout import HandlePart, Layout, Stored

Raw: TypeAlias = "tuple[Any, ...]"
_U64 = np.uint64
_LENGTH_MAX = _U64(1 << 31)
_TOP = _U64(1 << 63)
NUMBER_DIGITS: Final = 18  # as many as fit a 64-bit number, whatever the digits are


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one column. `prefix`: the bytes in front of the part of a value that differs from row to row."""

    prefix: bytes
    read: Callable[[Buffer, Ints], tuple[Raw, Ints]]
    arrow: Callable[[Buffer, Raw, Mask], Any]  # the mask tells where it is NULL

    def named(self, column_id: int) -> bytes:
        """Return a reader whose prefix includes the column's id, as a row has it."""
        return b"\x08" + encode_varint(column_id) + self.prefix


def reader_of(kind: FieldType, type_class: TypeClass) -> Reader | None:
    """Return the column's reader; None for a DECIMAL without a declared number of digits."""
    flag = bytes((flag_of(kind, type_class),))
    if type_class is TypeClass.DECIMAL:
        if kind.flen <= 0 or kind.decimal < 0 or kind.flen < kind.decimal:
            return None
        read, arrow = _decimal(kind.flen, kind.decimal)
        return Reader(flag + bytes((kind.flen, kind.decimal)), read, arrow)
    if type_class is TypeClass.FLOAT:
        return Reader(flag, _float, _numbers(np.dtype(np.float64), pa.float64()))
    if type_class in (TypeClass.TEXT, TypeClass.BYTES):
        return Reader(flag, _compact_bytes, spans)
    if type_class is TypeClass.JSON:
        return Reader(flag, _json, spans)
    if is_signed(kind, type_class):
        return Reader(flag, _signed, _numbers(np.dtype(np.int64), decoded_type(kind, type_class)))
    most = {TypeClass.SET: len(kind.elems), TypeClass.BIT: max(kind.flen, 1)}.get(type_class, 64)
    return Reader(flag, _unsigned(most), _numbers(np.dtype(np.uint64), decoded_type(kind, type_class)))


def _numbers(dtype: Any, kind: Any) -> Callable[[Buffer, Raw, Mask], Any]:
    def arrow(buffer: Buffer, raw: Raw, null: Mask) -> Any:
        values = raw[0].astype(dtype, copy=False)
        return pa.array(values, kind, mask=null if null.any() else None)

    return arrow


def _signed(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    value, size = buffer.varint(at)
    return (value,), size


def _unsigned(bits: int) -> Callable[[Buffer, Ints], tuple[Raw, Ints]]:
    def read(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
        value, size = buffer.uvarint(at)
        if bits < 64:
            size = np.where(value >> _U64(bits) == 0, size, 0)
        return (value,), size

    return read


def _float(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    bits = buffer.big_endian(at, 8)
    bits ^= np.where(bits & _TOP != 0, _TOP, ~_U64(0))
    return (bits.view(np.float64),), np.full(len(at), 8)


def _duration(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    return ((buffer.big_endian(at, 8) ^ _TOP).view(np.int64),), np.full(len(at), 8)


def _compact_bytes(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    raw, size = buffer.uvarint(at)
    fits = (raw & _U64(1) == 0) & (raw < _LENGTH_MAX)
    begin = at + size
    stop = np.minimum(begin + np.where(fits, zigzag(raw), 0), buffer.limit)
    return (begin, stop), np.where(fits & (size > 0), stop - at, 0)


def _json(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    code = buffer.octets[at]
    size = np.zeros(len(at), np.int64)
    size[(code == Code.INT64) | (code == Code.UINT64) | (code == Code.FLOAT64)] = 9
    size[code == Code.LITERAL] = 2
    head = buffer.words(at + 1)
    count, whole = head & _U64(0xFFFFFFFF), head >> _U64(32)
    for container, entry in ((Code.OBJECT, 11), (Code.ARRAY, 5)):
        fits = (code == container) & (whole >= _U64(8) + count * _U64(entry))
        size[fits] = whole[fits].astype(np.int64) + 1
    text = code == Code.STRING
    if text.any():
        length, wide = buffer.uvarint(at + 1)
        text &= (wide > 0) & (length < _LENGTH_MAX)
        size[text] = (length.astype(np.int64) + wide + 1)[text]
    stop = np.minimum(at + size, buffer.limit)
    return (at, stop), stop - at


def spans(buffer: Buffer, raw: Raw, null: Mask) -> Any:
    """Return slices of the buffer. Offsets must ascend. The begins and ends alternate in one array of offsets; every
    second element is a slice.
    """
    begin, stop = raw
    if null.any():  # unread rows have no valid offset, and offsets must ascend
        stop = np.where(null, 0, stop)
        before = np.maximum.accumulate(stop)
        begin, stop = np.where(null, before, begin), np.where(null, before, stop)
    count = len(begin)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = begin
    offsets[1::2] = stop
    offsets[-1] = offsets[-2] if count else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(buffer.data)])
    found = both.take(pa.array(np.arange(0, 2 * count, 2)))
    if null.any():
        found = pc.if_else(pa.array(~null), found, pa.scalar(None, pa.binary()))
    return found


def _groups(head: int, tail: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (digits, bytes) of the groups in front of the decimal point and after it."""
    whole, lead = divmod(head, DIGITS)
    full, rest = divmod(tail, DIGITS)
    before = ([lead] if lead else []) + [DIGITS] * whole
    behind = [DIGITS] * full + ([rest] if rest else [])
    return [(d, BYTES_OF_DIGITS[d]) for d in before], [(d, BYTES_OF_DIGITS[d]) for d in behind]


def _decimal(precision: int, frac: int) -> tuple[Callable[[Buffer, Ints], tuple[Raw, Ints]], Any]:
    """Return the reader of DECIMAL(precision, frac). It computes with numbers if each side of the point fits one, else
    it reads value by value.
    """
    before, behind = _groups(precision - frac, frac)
    total = sum(size for _, size in before + behind)
    fits_numbers = max(precision - frac, frac) <= NUMBER_DIGITS

    def read(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
        negative = buffer.octets[at] < 128
        good = np.ones(len(at), np.bool_)
        sides = []
        offset = at
        for groups in (before, behind):
            number = np.zeros(len(at), _U64)
            for digits, size in groups:
                # MySQL inverts every bit of a negative number, then the first bit of any number, so that stored numbers
                # compare as bytes do. Both are undone, the first bit at the first group.
                group = buffer.big_endian(offset, size)
                if offset is at:
                    group ^= _U64(1 << (8 * size - 1))
                group = np.where(negative, group ^ _U64((1 << 8 * size) - 1), group)
                good &= group < _U64(10**digits)
                number = number * _U64(10**digits) + group
                offset = offset + size
            sides.append(number)
        raw = (negative, *sides) if fits_numbers else (at,)
        return raw, np.where(good, total, 0)

    def one_by_one(buffer: Buffer, raw: Raw, null: Mask) -> Any:
        data = buffer.data
        offsets = zip(raw[0].tolist(), null.tolist(), strict=True)
        return pa.array([None if n else decode_digits(data, at, precision, frac)[0] for at, n in offsets], pa.string())

    return read, (lambda buffer, raw, null: _decimal_text(raw, null, frac)) if fits_numbers else one_by_one


def _decimal_text(raw: Raw, null: Mask, frac: int) -> Any:
    negative, head, tail = raw
    mask = null if null.any() else None
    minus = negative & ((head != 0) | (tail != 0))
    parts = [pc.cast(pa.array(head, mask=mask), pa.string())]
    if frac:
        parts += [pa.scalar("."), pc.utf8_lpad(pc.cast(pa.array(tail), pa.string()), frac, "0")]
    if minus.any():
        parts.insert(0, pc.if_else(pa.array(minus), "-", ""))
    return pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else parts[0]


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
    if part.type_class is TypeClass.TIME:  # only there it has its own flag: eight bytes in comparable form
        return Reader(b"\x07", _duration, _numbers(np.dtype(np.int64), pa.int64()))
    return reader_of(part.kind, part.type_class)


def _int_handle(buffer: Buffer, at: Ints) -> tuple[Raw, Ints]:
    raw, size = buffer.uvarint(at)
    return (zigzag(raw),), size


def _no_column(buffer: Buffer, raw: Raw, null: Mask) -> Any:
    raise NotImplementedError("a handle's number is read by its column")
