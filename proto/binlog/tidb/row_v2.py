"""Row format v2. TiDB never writes it into a binlog, but a drainer accepts it for inserts and deletes.

80 | flags | not-null count u16 | null count u16 | ids, not null then null | end offsets | values [| checksums]
little-endian; flag bit 0 makes ids and offsets u32 (else u8 and u16), bit 1 adds checksums. Values have no flag bytes,
so the columns' types are needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from binlog.errors import DecodeError

from .datum import Datum, Uint
from .decimal import decode_decimal
from .json import BinaryJSON, cut_json
from .number import decode_float
from .types import FLOATS, INTEGERS, STRINGS, FieldType, Tp

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
    """Check the length of the checksums. They cover the row as TiDB stored it, not these bytes, so they cannot be
    verified.
    """
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
