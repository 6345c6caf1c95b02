"""TiDB's codecs that no program needs: keys of indexes and meta data, descending order, rows in format 2, and
values that JSON text does not have.

index key: `t` ‖ cmpint(table) ‖ `_i` ‖ cmpint(index) ‖ key-form datums.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from binlog.errors import DecodeError
from binlog.tidb.datum import (
    Datum,
    Uint,
    decode_bytes,
    decode_int,
    decode_one,
    encode_bytes,
    encode_float,
    encode_int,
    encode_key,
    encode_value,
)
from binlog.tidb.decimal import Decimal, encode_decimal
from binlog.tidb.flatten import to_float32, to_text
from binlog.tidb.json import BinaryJSON, Code
from binlog.tidb.key import META_PREFIX, RECORD, TABLE_PREFIX, Handle, encode_handle, table_prefix
from binlog.tidb.row import Values
from binlog.tidb.time import Civil
from binlog.tidb.types import FLOATS, INTEGERS, FieldType, Tp
from binlog.tidb.varint import encode_uvarint

PythonValue: TypeAlias = "int | float | str | bytes | None"

INDEX = b"_i"
_COMMON_HANDLE_BYTES_MIN = 9
_STRING = b"\x00\x00\x00\x00\x00\x00\x00s"
_HASH = b"\x00\x00\x00\x00\x00\x00\x00h"
_COMPLEMENT = bytes(255 - b for b in range(256))
_SIGN = 1 << 63
_uint64 = struct.Struct(">Q")
_INT_SIZES = (1, 2, 4, 8)
_VERSION_2 = 0x80


def decode_all(buf: bytes, pos: int = 0) -> list[Datum]:
    """Decode every datum up to the end of the buffer."""
    found: list[Datum] = []
    while pos < len(buf):
        value, pos = decode_one(buf, pos)
        found.append(value)
    return found


# Keys


def index_key(table_id: int, index_id: int, values: Sequence[Datum], handle: Handle | None = None) -> bytes:
    """Return an index key. `handle` is given if the index is not unique or a value is NULL; an int handle becomes an
    int datum.
    """
    tail = b"" if handle is None else encode_key(handle) if isinstance(handle, int) else encode_handle(handle)
    return table_prefix(table_id) + INDEX + encode_int(index_id) + b"".join(map(encode_key, values)) + tail


@dataclass(frozen=True, slots=True)
class RecordKey:
    """A decoded record key. The zero padding of a short common handle is decoded as trailing NULLs."""

    table_id: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class IndexKey:
    """A decoded index key. If it contains a handle, that is the last of `values`."""

    table_id: int
    index_id: int
    values: tuple[Datum, ...]


def decode_table_key(key: bytes) -> RecordKey | IndexKey:
    """Decode a record or index key. Raises DecodeError if it is neither."""
    if key[:1] != TABLE_PREFIX:
        raise DecodeError("table key", offset=0, detail="it does not begin with 't'")
    table_id, at = decode_int(key, 1)
    kind = key[at : at + 2]
    at += 2
    if kind == INDEX:
        index_id, at = decode_int(key, at)
        return IndexKey(table_id, index_id, tuple(decode_all(key, at)))
    if kind != RECORD:
        raise DecodeError("table key", offset=at - 2, detail="neither a record nor an index")
    if len(key) - at == 8:
        return RecordKey(table_id, decode_int(key, at)[0])
    if len(key) - at < _COMMON_HANDLE_BYTES_MIN:
        raise DecodeError("table key", offset=at, detail="insufficient bytes to decode value")
    return RecordKey(table_id, tuple(decode_all(key, at)))


@dataclass(frozen=True, slots=True)
class MetaKey:
    """A key of TiDB's meta data: a string (`field` is None) or a field of a hash."""

    name: bytes
    field: bytes | None = None


def meta_string_key(name: bytes) -> bytes:
    """Return the key of a string, for example `SchemaVersionKey`."""
    return META_PREFIX + encode_bytes(name) + _STRING


def decode_meta_key(key: bytes) -> MetaKey:
    """Decode a meta key. Raises DecodeError if it is neither a string nor a field of a hash."""
    if key[:1] != META_PREFIX:
        raise DecodeError("meta key", offset=0, detail="it does not begin with 'm'")
    name, at = decode_bytes(key, 1)
    kind, at = key[at : at + 8], at + 8
    if kind == _STRING and at == len(key):
        return MetaKey(name)
    if kind != _HASH:
        raise DecodeError("meta key", offset=at - 8, detail="neither a string nor a field of a hash")
    field, end = decode_bytes(key, at)
    if end != len(key):
        raise DecodeError("meta key", offset=end, detail="bytes after the key")
    return MetaKey(name, field)


# Descending order


def encode_bytes_desc(data: bytes) -> bytes:
    return encode_bytes(data).translate(_COMPLEMENT)


def decode_bytes_desc(buf: bytes, pos: int = 0) -> tuple[bytes, int]:
    data, end = decode_bytes(buf[pos:].translate(_COMPLEMENT))
    return data, pos + end


# Datums and rows


def encode_row_v2(values: Mapping[int, Datum]) -> bytes:
    """Encode a row without checksums. Raises ValueError if it has more columns than the format allows."""
    present = sorted(column_id for column_id, value in values.items() if value is not None)
    absent = sorted(column_id for column_id, value in values.items() if value is None)
    parts = [_encode_value(values[column_id]) for column_id in present]
    ends: list[int] = []
    at = 0
    for part in parts:
        at += len(part)
        ends.append(at)
    ids = [*present, *absent]
    large = at > 0xFFFF or any(column_id > 0xFF for column_id in ids)
    ids_format, ends_format = ("I", "I") if large else ("B", "H")
    try:
        index = struct.pack(f"<{len(ids)}{ids_format}{len(ends)}{ends_format}", *ids, *ends)
        header = struct.pack("<BBHH", _VERSION_2, int(large), len(present), len(absent))
    except struct.error as err:
        raise ValueError(f"the row does not fit format 2: {err}") from None
    return header + index + b"".join(parts)


def _encode_value(value: Datum) -> bytes:
    if isinstance(value, float):
        return encode_float(value)
    if isinstance(value, Decimal):
        return encode_decimal(value, value.precision, value.frac)
    if isinstance(value, int):
        signed = not isinstance(value, Uint)
        size = next(n for n in _INT_SIZES if n == 8 or _fits(value, n, signed))
        return int(value).to_bytes(size, "little", signed=signed)
    if isinstance(value, bytes):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is not a datum")


def _fits(value: int, size: int, signed: bool) -> bool:
    bits = 8 * size
    return -(1 << bits - 1) <= value < 1 << bits - 1 if signed else value < 1 << bits


def to_python(value: Datum, kind: FieldType) -> PythonValue:
    """Return the same as `to_text`, but numbers as numbers."""
    shown = to_text(value, kind)
    if value is None or not isinstance(value, int | float):
        return shown
    if kind.tp in INTEGERS or kind.tp == Tp.BIT:
        return int(value)
    if kind.tp in FLOATS:
        return to_float32(value) if kind.tp == Tp.FLOAT else float(value)
    return shown


# Values inside JSON that Python has no type for


def core_pack(when: Civil) -> int:
    """Pack a time in the layout inside JSON."""
    bits = (when.year << 4 | when.month) << 5 | when.day
    bits = ((bits << 5 | when.hour) << 6 | when.minute) << 6 | when.second
    return (bits << 20 | when.microsecond) << 4


def json_time(code: int, when: Civil) -> BinaryJSON:
    """Encode a DATE, DATETIME or TIMESTAMP in JSON."""
    return BinaryJSON(struct.pack("<BQ", code, core_pack(when)))


def json_duration(ns: int, fsp: int) -> BinaryJSON:
    """Encode a TIME in JSON: nanoseconds, and the digits of its fraction."""
    return BinaryJSON(struct.pack("<BqI", Code.DURATION, ns, fsp))


def json_opaque(tp: int, data: bytes) -> BinaryJSON:
    """Encode bytes in JSON, with the MySQL type they came from."""
    return BinaryJSON(bytes((Code.OPAQUE, tp)) + encode_uvarint(len(data)) + data)


def encode_row(values: Values) -> bytes:
    """A ROW in the order of the mapping."""
    return b"".join(encode_value(column_id) + encode_value(value) for column_id, value in values.items()) or b"\x00"
