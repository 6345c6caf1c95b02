"""Rows in a TableMutation: format v1, which TiDB always uses for binlogs, and v2, which it never does and a drainer
accepts for inserts and deletes.

v1: ROW is (column id as varint datum, value datum)*; a row without columns is the single byte 00.
insert = handle datums ‖ ROW; update = ROW(old) ‖ ROW(new) with the same ids in the same order; delete = ROW(old).
Rows map column ids to flattened datums (for their meaning see `flatten`); id -1 is `_tidb_rowid`.

v2: 80 | flags | not-null count u16 | null count u16 | ids, not null then null | end offsets | values [| checksums]
little-endian; flag bit 0 makes ids and offsets u32 (else u8 and u16), bit 1 adds checksums. Values have no flag bytes,
so the columns' types are needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from binlog.errors import DecodeError

from .datum import COMPACT_BYTES, NIL, VARINT, Datum, Duration, Uint, decode_float, decode_one, encode_value
from .decimal import decode_decimal
from .json import BinaryJSON, cut_json
from .table import ROWID, ColumnInfo, TableInfo
from .types import FLOATS, INTEGERS, STRINGS, UNSPECIFIED, FieldType, Tp
from .varint import TOO_SHORT, decode_varint, encode_varint

Row: TypeAlias = "dict[int, Datum]"
Values: TypeAlias = "Mapping[int, Datum]"

_EMPTY = b"\x00"


def _pairs(buf: bytes, pos: int) -> list[tuple[int, Datum]]:
    """Return (column id, value) pairs up to the end of the buffer.

    This is one flat loop because every row that needs the slow path passes through it. It reads ids and numbers of one
    byte, short strings and NULL itself; `decode_one` reads the rest.
    """
    found: list[tuple[int, Datum]] = []
    add = found.append
    size = len(buf)
    try:
        while pos < size:
            if buf[pos] != VARINT:
                raise DecodeError("row", offset=pos, detail=f"a column id was expected, not flag {buf[pos]}")
            raw = buf[pos + 1]
            pos += 2
            if raw < 0x80:
                column_id = (raw >> 1) ^ -(raw & 1)
            else:
                column_id, pos = decode_varint(buf, pos - 1)
            flag = buf[pos]
            if flag == NIL:
                add((column_id, None))
                pos += 1
                continue
            raw = buf[pos + 1]
            if flag == VARINT and raw < 0x80:
                add((column_id, (raw >> 1) ^ -(raw & 1)))
                pos += 2
            elif flag == COMPACT_BYTES and raw < 0x80 and not raw & 1:
                end = pos + 2 + (raw >> 1)
                if end > size:
                    raise DecodeError("row", offset=pos, detail=f"{TOO_SHORT}, expected length: {raw >> 1}")
                add((column_id, buf[pos + 2 : end]))
                pos = end
            else:
                value, pos = decode_one(buf, pos)
                add((column_id, value))
    except IndexError:
        raise DecodeError("row", offset=size, detail=TOO_SHORT) from None
    return found


def decode_row(buf: bytes, pos: int = 0) -> Row:
    """Decode a complete v1 ROW from `pos` to the end. For v2, which needs the column types, see `decode_typed_row`.

    Raises DecodeError if the row is truncated, is v2, or contains a column twice.
    """
    if buf[pos:] == _EMPTY:
        return {}
    if pos >= len(buf):
        raise DecodeError("row", offset=pos, detail="a row has at least one byte")
    pairs = _pairs(buf, pos)
    row = dict(pairs)
    if len(row) != len(pairs):
        raise DecodeError("row", offset=pos, detail="a column occurs twice")
    return row


def decode_typed_row(table: TableInfo, buf: bytes, pos: int = 0) -> Row:
    """Decode a ROW of v1 or v2, with the types of `table`. In v2, columns that the table does not have are skipped."""
    if pos < len(buf) and buf[pos] == VERSION_2:
        return decode_row_v2(buf[pos:], {c.id: c.type for c in table.columns})
    return decode_row(buf, pos)


def handle_columns(table: TableInfo) -> tuple[tuple[ColumnInfo, int], ...]:
    """Return (column, prefix length or -1) for the columns of a clustered key, in index order; empty for an int handle.

    Raises DecodeError if the table is marked as clustered but has no primary index (D-TR-01).
    """
    if not table.is_common_handle:
        return ()
    index = table.primary_index()
    if index is None:
        raise DecodeError(f"table {table.name}", offset=0, detail="Unsupported clustered index without primary key")
    return tuple((table.columns[part.offset], part.length) for part in index.columns)


def decode_insert(table: TableInfo, buf: bytes) -> tuple[tuple[Datum, ...], Row]:
    """Decode an insert: (handle datums, row with the handle's columns filled in; D-TR-01).

    A clustered column is taken from the handle only if the index contains the full column and the row lacks it: under a
    collation, the handle contains the sort key. Without a clustered key, the row contains the rowid under id -1.
    """
    parts = handle_columns(table)
    pos = 0
    handle: list[Datum] = []
    for _ in range(len(parts) or 1):
        value, pos = decode_one(buf, pos)
        handle.append(value)
    row = decode_typed_row(table, buf, pos)
    if parts:
        for (column, length), value in zip(parts, handle, strict=True):
            if length == UNSPECIFIED:
                if isinstance(value, Duration) and column.type.tp == Tp.DURATION:
                    value = int(value)  # a TIME is a Duration in a handle and an int in a row
                row.setdefault(column.id, value)
        return tuple(handle), row
    number = handle[0]
    if not isinstance(number, int):
        raise DecodeError("handle", offset=0, detail=f"a whole number was expected, not {number!r}")
    column_of_handle = table.handle_column
    if column_of_handle is None:
        row[ROWID] = number
    else:
        row[column_of_handle.id] = Uint(number & 0xFFFFFFFFFFFFFFFF) if column_of_handle.is_unsigned else number
    return (number,), row


def decode_update(buf: bytes) -> tuple[Row, Row]:
    """Decode an update: (old, new). The first value of a column id is the old one, the second the new one (D-TR-04)."""
    if buf == _EMPTY:
        return {}, {}
    old: Row = {}
    new: Row = {}
    for column_id, value in _pairs(buf, 0):
        if column_id not in old:
            old[column_id] = value
        elif column_id not in new:
            new[column_id] = value
        else:
            raise DecodeError("updated row", offset=0, detail=f"column {column_id} occurs three times")
    if len(old) != len(new) or not old:
        detail = f"row data is corrupted cols num: {len(old)} vs {len(new)}"
        raise DecodeError("updated row", offset=len(buf), detail=detail)
    return old, new


def decode_delete(table: TableInfo, buf: bytes) -> Row:
    """Decode a delete: all columns, including virtual generated ones (X-13)."""
    return decode_typed_row(table, buf)


def needs_restored_data(column: ColumnInfo, *, new_collation: bool = True) -> bool:
    """Return whether the row must contain this clustered column: the handle contains a collation's sort key instead."""
    kind = column.type
    if not new_collation or not kind.is_string or kind.collate in ("binary", "utf8mb4_0900_bin"):
        return False
    return not kind.collate.endswith("_bin") or kind.tp in (Tp.VARCHAR, Tp.VAR_STRING)


def encode_handle_value(column: ColumnInfo, length: int, value: Datum, *, new_collation: bool = True) -> bytes:
    """Encode one column of a clustered key as in an insert: the key form, decoded and written in value form.

    `_bin` sort keys are exact. For other collations the text is written in place of the weights, which readers only
    skip.
    """
    kind = column.type
    if isinstance(value, bytes) and kind.is_string:
        if length != UNSPECIFIED:
            value = (
                value[:length]
                if kind.is_binary
                else value.decode(errors="surrogateescape")[:length].encode(errors="surrogateescape")
            )
        if new_collation and kind.collate != "binary":
            value = sort_key(value, kind.collate)
    if kind.tp == Tp.DURATION and isinstance(value, int):
        value = Duration(value)
    return encode_value(value)


def sort_key(text: bytes, collate: str) -> bytes:
    """Return the weights of a collation: exact for `_bin`, and for ASCII under `_general_ci`; otherwise the text."""
    trimmed = text.rstrip(b" ")
    if collate.endswith("_general_ci") and trimmed.isascii():
        return b"".join(b"\x00" + bytes((byte,)) for byte in trimmed.upper())
    return text if collate == "utf8mb4_0900_bin" else trimmed


_Named: TypeAlias = "tuple[int, bytes]"  # a column's id, and what is before its value in a row


def _named(column_id: int) -> _Named:
    return column_id, b"\x08" + encode_varint(column_id)


def _joined(columns: Sequence[_Named], values: Values) -> bytes:
    return b"".join([name + encode_value(values.get(column_id)) for column_id, name in columns])


class RowLayout:
    """Encodes the rows of one table from flattened values by column id; a column without one is NULL."""

    def __init__(self, table: TableInfo, *, new_collation: bool = True) -> None:
        self._table, self._new_collation = table, new_collation
        self._parts = handle_columns(table)
        in_handle = {column.id: length for column, length in self._parts}
        self._inserted: list[_Named] = []
        left_out: set[int] = set()  # if they are NULL
        stored = [column for column in table.columns if column.is_writable and not column.is_virtual]
        for column in stored:
            is_key = table.pk_is_handle and column.is_primary
            is_complete = in_handle.get(column.id) == UNSPECIFIED
            restored = is_complete and needs_restored_data(column, new_collation=new_collation)
            if not is_key and (restored or not is_complete):
                defaults = (column.default, column.origin_default, column.default_bit)
                self._inserted.append(_named(column.id))
                left_out |= {column.id} if all(one is None for one in defaults) else set()
        self._left_out = frozenset(left_out)
        self._updated = [_named(column.id) for column in stored]
        self._deleted = [_named(column.id) for column in table.columns]
        self._rowid = [] if table.pk_is_handle or table.is_common_handle else [_named(ROWID)]

    def insert(self, values: Values, rowid: int | None = None) -> bytes:
        """Return HANDLE ‖ ROW. Raises as `encode_insert`."""
        left_out = self._left_out
        columns = [one for one in self._inserted if one[0] not in left_out or values.get(one[0]) is not None]
        row = _joined(columns, values) or _EMPTY
        if self._parts:
            new = self._new_collation
            encoded = [encode_handle_value(c, n, values.get(c.id), new_collation=new) for c, n in self._parts]
            return b"".join(encoded) + row
        return encode_value(_int_handle(self._table, values, rowid)) + row

    def update(self, old: Values, new: Values) -> bytes:
        """Return ROW(old) ‖ ROW(new): every writable non-virtual column, then the rowid if there is one."""
        return self._image(self._updated, old) + self._image(self._updated, new)

    def delete(self, old: Values) -> bytes:
        """Return ROW(old): every column in any state, then the rowid if there is one."""
        return self._image(self._deleted, old)

    def _image(self, columns: Sequence[_Named], values: Values) -> bytes:
        rowid = self._rowid if values.get(ROWID) is not None else ()
        return _joined([*columns, *rowid], values) or _EMPTY


def encode_insert(table: TableInfo, values: Values, *, rowid: int | None = None, new_collation: bool = True) -> bytes:
    """Encode HANDLE ‖ ROW of flattened `values` by column id, in TiDB's layout.

    `rowid` (or values[-1]) is the handle of a table without a clustered key. A column absent from `values` is NULL.
    Raises ValueError if the handle is missing or not an integer.
    """
    return RowLayout(table, new_collation=new_collation).insert(values, rowid)


def _int_handle(table: TableInfo, values: Values, rowid: int | None) -> int:
    column = table.handle_column
    number = values.get(column.id) if column is not None else values.get(ROWID, rowid)
    if not isinstance(number, int):
        what = column.name if column is not None else "_tidb_rowid"
        raise ValueError(f"table {table.name}: {what} is the row's handle and must be a whole number, not {number!r}")
    # A handle is signed even if the key is unsigned: 18446744073709551615 is written as -1.
    return number - (1 << 64) if number >= 1 << 63 else int(number)


def encode_update(table: TableInfo, old: Values, new: Values) -> bytes:
    """See RowLayout.update."""
    return RowLayout(table).update(old, new)


def encode_delete(table: TableInfo, old: Values) -> bytes:
    """See RowLayout.delete."""
    return RowLayout(table).delete(old)


VERSION_2 = 0x80
_LARGE = 1
_CHECKSUM = 2
_INT_SIZES = (1, 2, 4, 8)


def decode_row_v2(buf: bytes, types: Mapping[int, FieldType]) -> dict[int, Datum]:
    """Decode a row: {column id: flattened datum}, for the columns in `types`. Raises DecodeError if it is truncated."""
    if len(buf) < 6 or buf[0] != VERSION_2:
        raise DecodeError("row v2", offset=0, detail="not a row of format 2")
    large = bool(buf[1] & _LARGE)
    not_null, null = struct.unpack_from("<HH", buf, 2)
    ids_format, ends_format = ("I", "I") if large else ("B", "H")
    index = struct.Struct(f"<{not_null + null}{ids_format}{not_null}{ends_format}")
    start = 6 + index.size
    if start > len(buf):
        raise DecodeError("row v2", offset=len(buf), detail="insufficient bytes to decode value")
    numbers = index.unpack_from(buf, 6)
    ids, ends = numbers[: not_null + null], numbers[not_null + null :]
    row: dict[int, Datum] = {column_id: None for column_id in ids[not_null:] if column_id in types}
    at = start
    for column_id, offset in zip(ids, ends, strict=False):
        end = start + offset
        if not at <= end <= len(buf):
            raise DecodeError("row v2", offset=at, detail=f"column {column_id} ends at {end}, outside the row")
        if column_id in types:
            row[column_id] = _decode_value(buf[at:end], types[column_id], at)
        at = end
    _check_tail(buf, at)
    return row


def _check_tail(buf: bytes, at: int) -> None:
    """Check the length of the checksums, which cover the row as TiDB stored it and so cannot be verified."""
    expected = 0
    if buf[1] & _CHECKSUM:
        if at >= len(buf):
            raise DecodeError("row v2", offset=at, detail="the checksum is missing")
        expected = 9 if buf[at] & 8 else 5
    if len(buf) - at != expected:
        raise DecodeError("row v2", offset=at, detail=f"{len(buf) - at} bytes after the values, not {expected}")


def _decode_value(data: bytes, kind: FieldType, offset: int) -> Datum:
    tp = kind.tp
    if tp in STRINGS:
        return data
    if tp in FLOATS:
        _exactly(data, 8, offset)
        return decode_float(data)[0]
    if tp == Tp.NEWDECIMAL:
        value, end = decode_decimal(data)
        _exactly(data, end, offset)
        return value
    if tp == Tp.JSON:
        _exactly(data, cut_json(data), offset)
        return BinaryJSON(data)
    if len(data) not in _INT_SIZES:
        raise DecodeError("row v2", offset=offset, detail=f"a number of {len(data)} bytes")
    if tp == Tp.DURATION or (tp in INTEGERS and not kind.is_unsigned):
        return int.from_bytes(data, "little", signed=True)
    return Uint(int.from_bytes(data, "little"))


def _exactly(data: bytes, size: int, offset: int) -> None:
    if len(data) != size:
        raise DecodeError("row v2", offset=offset, detail=f"a value of {len(data)} bytes, not {size}")
