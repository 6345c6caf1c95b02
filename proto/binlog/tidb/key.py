"""Keys of the key-value store: records, indexes, and TiDB's own meta data.

record `t` ‖ cmpint(table) ‖ `_r` ‖ handle;  index `t` ‖ cmpint(table) ‖ `_i` ‖ cmpint(index) ‖ key-form datums;
meta `m` ‖ membytes(key) ‖ be64(kind) [‖ membytes(field)]. The table id is the physical one (a partition's own).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from binlog.errors import DecodeError

from .datum import Datum, decode_all, encode_key
from .memcomparable import decode_bytes, encode_bytes
from .number import decode_int, encode_int

Handle: TypeAlias = "int | tuple[Datum, ...]"  # int handle, or the columns of a clustered key

TABLE_PREFIX = b"t"
RECORD = b"_r"
INDEX = b"_i"
META_PREFIX = b"m"
_STRING = b"\x00\x00\x00\x00\x00\x00\x00s"
_HASH = b"\x00\x00\x00\x00\x00\x00\x00h"
_COMMON_HANDLE_BYTES_MIN = 9


def table_prefix(table_id: int) -> bytes:
    return TABLE_PREFIX + encode_int(table_id)


def encode_handle(handle: Handle) -> bytes:
    """Encode a handle: cmpint, or key-form datums padded with zeros to 9 bytes. The length tells the two forms
    apart.
    """
    if isinstance(handle, int):
        return encode_int(handle)
    return b"".join(map(encode_key, handle)).ljust(_COMMON_HANDLE_BYTES_MIN, b"\x00")


def record_key(table_id: int, handle: Handle) -> bytes:
    return table_prefix(table_id) + RECORD + encode_handle(handle)


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


def meta_hash_key(name: bytes, field: bytes) -> bytes:
    """Return the key of a hash field, for example hash `DBs`, field `DB:1`."""
    return META_PREFIX + encode_bytes(name) + _HASH + encode_bytes(field)


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
