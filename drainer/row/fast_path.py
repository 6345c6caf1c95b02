"""Fast path for rows in TiDB's usual encoding (columns in table order, the usual flags): they are read one by one into
decoded values.

The encoding of a layout's rows is compiled once into a `Line` for each column; decoding a row is one loop over them.
The result is None for a row in any other encoding, which GeneralReader then decodes (codec.py). The loop may
read beyond the row's end: a row is accepted only if it ends exactly where it should, and the position never goes back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from binlog.errors import DecodeError
from binlog.tidb.decimal import decode_decimal_text, decode_digits
from binlog.tidb.json import cut_json
from binlog.tidb.types import FieldType
from binlog.tidb.varint import decode_compact_bytes, decode_uvarint, decode_varint, encode_varint

from drainer.row.column_type import DecodedValue, TypeClass, flag_of, is_signed
from drainer.row.layout import HandlePart, Layout, Stored

Cells: TypeAlias = "Sequence[DecodedValue]"
Read: TypeAlias = "Callable[[bytes, int], tuple[DecodedValue, int]]"
# One column: the bytes before its payload and their number; how the payload is read (_SIGNED to _CALL); its index in
# the cells; and what is rarely used: the function for _CALL, the bytes of NULL and their number (0: NOT NULL), whether
# rows without the column are left to the general decoder.
Line: TypeAlias = "tuple[bytes, int, int, int, tuple[Read, bytes, int, bool]]"

_SIGNED, _UNSIGNED, _COMPACT, _CALL = range(4)
_REFUSED: Final = -1
_ERRORS: Final = (IndexError, ValueError, DecodeError)
_ROWID: Final = b"\x08\x01\x08"  # its id, and the flag of a whole number
_double: Final = struct.Struct(">d").unpack
_pack8: Final = struct.Struct(">Q").pack


class FastReader:
    """Decodes rows of one layout. `needed`: indexes of the columns of old images that are decoded."""

    __slots__ = (
        "_blank", "_deleted", "_handle", "_has_rowid", "_inserted", "_needs_columns", "_new", "_old", "_unsigned",
    )  # fmt: skip

    def __init__(self, layout: Layout, needed: Collection[int]) -> None:
        self._has_rowid = layout.has_rowid
        # One cell more than there are columns, for values that are not needed.
        self._blank: list[DecodedValue] = [*(target.default for target in layout.targets), None]
        spare = len(layout.targets)
        self._handle = tuple([_handle_line(part, spare) for part in layout.handle])
        # Index of the unsigned column that the handle holds, -1 if none: a handle is a signed integer.
        self._unsigned = next((part.target for part in layout.handle if part.unsigned), -1)
        given = {part.target for part in layout.handle}
        is_number = any(part.kind is None for part in layout.handle)
        key = frozenset(layout.key.columns)
        nameless = {n for n in key - given if layout.targets[n].default is None}
        carried = [stored for stored in layout.stored if stored.in_insert]
        every = frozenset(range(spare))
        # An integer handle has the column's value, whatever the row has in that column (D-TR-01).
        asked = every - given if is_number else every
        self._inserted = tuple([_line(s, spare, s.target in asked, s.target in nameless, key) for s in carried])
        self._needs_columns = any(line[4][3] for line in self._inserted)
        self._new = tuple([_line(s, spare, s.target >= 0, s.target >= 0, key) for s in carried])
        # Both images of an update have the same columns, so the old one must have those, too, that are not needed.
        self._old = tuple([_line(s, spare, s.target in needed, s.target >= 0, key) for s in carried])
        self._deleted = tuple([_line(s, spare, s.target in needed, s.target in needed, key) for s in layout.stored])

    def insert(self, b: bytes, p: int, end: int) -> list[DecodedValue] | None:
        """The decoded values of the row b[p:end]; None if the general decoder must decode it."""
        try:
            cells = self._blank[:]
            p = _image(b, p, self._handle, cells)
            if p < 0:
                return None
            if self._unsigned >= 0:
                value = cells[self._unsigned]
                if value < 0:  # type: ignore[operator]
                    cells[self._unsigned] = value + (1 << 64)  # type: ignore[operator]
            if p + 1 < end:
                p = _image(b, p, self._inserted, cells)
                if self._has_rowid:
                    p = _behind_rowid(b, p)
            elif p < end and not b[p] and not self._needs_columns:
                p = end  # a row without columns is one 00
            else:
                return None
        except _ERRORS:
            return None
        if p != end:
            return None
        cells.pop()
        return cells

    def update(self, b: bytes, p: int, end: int) -> tuple[list[DecodedValue], list[DecodedValue]] | None:
        """(old, new)."""
        try:
            old, new = self._blank[:], self._blank[:]
            p = _image(b, p, self._old, old)
            if p < 0:
                return None
            if self._has_rowid:
                begin, p = p, _behind_rowid(b, p)
                had = p > begin
                begin = _image(b, p, self._new, new)
                p = _behind_rowid(b, begin)
                if had != (p > begin):
                    return None
            else:
                p = _image(b, p, self._new, new)
        except _ERRORS:
            return None
        if p != end:
            return None
        old.pop()
        new.pop()
        return old, new

    def delete(self, b: bytes, p: int, end: int) -> list[DecodedValue] | None:
        """Like `insert`, for a deleted row."""
        if p + 1 >= end:
            return None
        try:
            cells = self._blank[:]
            p = _image(b, p, self._deleted, cells)
            if self._has_rowid:
                p = _behind_rowid(b, p)
        except _ERRORS:
            return None
        if p != end:
            return None
        cells.pop()
        return cells


def _image(b: bytes, p: int, lines: Sequence[Line], cells: list[DecodedValue]) -> int:
    """All columns of one image from `p` on, into the cells; what the row lacks is left as it is. Where it ends, or
    _REFUSED. Numbers and lengths of one to three bytes are read in line: a call costs as much as all the rest."""
    for prefix, size, how, column_index, rest in lines:
        q = p + size
        if b[p:q] == prefix:
            if how == _CALL:
                cells[column_index], p = rest[0](b, q)
                continue
            # An unsigned varint of up to three bytes, seven bits each, the lowest first. The sums contain the
            # continuation bits of the bytes before the last, which are subtracted: 128, and 128 + (128 << 7).
            value = b[q]
            if value < 128:
                p = q + 1
            else:
                more = b[q + 1]
                if more < 128:
                    value += (more << 7) - 128
                    p = q + 2
                else:
                    most = b[q + 2]
                    if most < 128:
                        value += (more << 7) + (most << 14) - 16_512
                        p = q + 3
                    else:
                        value, p = decode_uvarint(b, q)
            if how == _COMPACT:
                if value & 1:
                    return _REFUSED
                q = p + (value >> 1)
                cells[column_index] = b[p:q]
                p = q
            else:
                cells[column_index] = value if how == _UNSIGNED else (value >> 1) ^ -(value & 1)
            continue
        _, null, width, is_required = rest
        if width and b[p : p + width] == null:
            cells[column_index] = None
            p += width
        elif is_required:
            return _REFUSED
    return p


def _behind_rowid(b: bytes, p: int) -> int:
    """Rows without a clustered key end with their rowid."""
    if p < 0 or b[p : p + 3] != _ROWID:
        return p
    return decode_uvarint(b, p + 3)[1]


def _line(stored: Stored, spare: int, is_asked: bool, is_required: bool, key: Collection[int]) -> Line:
    """`is_asked`: whether its decoded value is; `is_required`: whether a row without it is left to the general
    decoder."""
    kind, type_class = stored.kind, stored.type_class
    name = b"\x08" + encode_varint(stored.id)
    prefix = name + bytes((flag_of(kind, type_class),)) + decimal_prefix(kind, type_class)
    refuses_null = is_asked and (stored.not_null or stored.target in key)
    null = b"" if refuses_null else name + b"\0"
    column_index = stored.target if is_asked else spare
    how, read = _reader(kind, type_class)
    return prefix, len(prefix), how, column_index, (read, null, len(null), is_required)


def decimal_prefix(kind: FieldType, type_class: TypeClass) -> bytes:
    """Precision and frac as a row of a DECIMAL column carries them; empty when the type does not say."""
    if type_class is not TypeClass.DECIMAL or kind.flen <= 0 or kind.decimal < 0:
        return b""
    return bytes((kind.flen, kind.decimal))


def _reader(kind: FieldType, type_class: TypeClass) -> tuple[int, Read]:
    """Return how a payload is read, and the function that reads it."""
    if type_class is TypeClass.INT:
        return (_SIGNED, decode_varint) if is_signed(kind, type_class) else (_UNSIGNED, decode_uvarint)
    if type_class in (TypeClass.TEXT, TypeClass.BYTES):
        return _COMPACT, decode_compact_bytes
    if type_class is TypeClass.TIME:
        return _CALL, decode_varint
    if type_class is TypeClass.DECIMAL:
        return _CALL, _decimal_reader(kind)
    if type_class is TypeClass.FLOAT:
        return _CALL, _float
    return (_CALL, _json) if type_class is TypeClass.JSON else (_UNSIGNED, decode_uvarint)


def _float(b: bytes, p: int) -> tuple[float, int]:
    bits = int.from_bytes(b[p : p + 8], "big")
    bits ^= 0x8000000000000000 if bits & 0x8000000000000000 else 0xFFFFFFFFFFFFFFFF
    return _double(_pack8(bits))[0], p + 8


def _json(b: bytes, p: int) -> tuple[bytes, int]:
    end = cut_json(b, p)
    return b[p:end], end


def _decimal_reader(kind: FieldType) -> Read:
    if not decimal_prefix(kind, TypeClass.DECIMAL):
        return decode_decimal_text
    precision, tail = kind.flen, kind.decimal
    return lambda b, p: decode_digits(b, p, precision, tail)


def _duration(b: bytes, p: int) -> tuple[int, int]:
    """The payload of the duration flag: eight bytes that compare."""
    return int.from_bytes(b[p : p + 8], "big") - (1 << 63), p + 8


def _handle_line(part: HandlePart, spare: int) -> Line:
    column_index = part.target if part.target >= 0 else spare
    if part.kind is None:
        return b"\x08", 1, _SIGNED, column_index, (decode_varint, b"", 0, True)
    if part.type_class is TypeClass.TIME:
        return b"\x07", 1, _CALL, column_index, (_duration, b"", 0, True)
    prefix = bytes((flag_of(part.kind, part.type_class),)) + decimal_prefix(part.kind, part.type_class)
    how, read = _reader(part.kind, part.type_class)
    return prefix, len(prefix), how, column_index, (read, b"", 0, True)
