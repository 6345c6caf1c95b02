"""Keys of the key-value store: records, and TiDB's own meta data.

record `t` ‖ cmpint(table) ‖ `_r` ‖ handle;  meta `m` ‖ membytes(key) ‖ be64(kind) [‖ membytes(field)]. The table id is
the physical one (a partition's own).
"""

from __future__ import annotations

from typing import TypeAlias

from binlog.errors import DecodeError

from .datum import Datum, decode_bytes, encode_bytes, encode_int, encode_key

Handle: TypeAlias = "int | tuple[Datum, ...]"  # int handle, or the columns of a clustered key

TABLE_PREFIX = b"t"
RECORD = b"_r"
META_PREFIX = b"m"
META_STRING, META_HASH, META_LIST = b"s", b"h", b"l"
_COMMON_HANDLE_BYTES_MIN = 9


def table_prefix(table_id: int) -> bytes:
    return TABLE_PREFIX + encode_int(table_id)


def encode_handle(handle: Handle) -> bytes:
    """Encode a handle: cmpint, or key-form datums padded with zeros to 9 bytes. The length tells them apart."""
    if isinstance(handle, int):
        return encode_int(handle)
    return b"".join(map(encode_key, handle)).ljust(_COMMON_HANDLE_BYTES_MIN, b"\x00")


def record_key(table_id: int, handle: Handle) -> bytes:
    return table_prefix(table_id) + RECORD + encode_handle(handle)


def meta_prefix(name: bytes, kind: bytes) -> bytes:
    """Return the key of a string, or what every key of the fields of a hash, or of the items of a list, begins with."""
    return META_PREFIX + encode_bytes(name) + kind.rjust(8, b"\0")


def meta_hash_key(name: bytes, field: bytes) -> bytes:
    """Return the key of a hash field, for example hash `DBs`, field `DB:1`."""
    return meta_prefix(name, META_HASH) + encode_bytes(field)


def meta_hash_field(key: bytes, name: bytes) -> bytes:
    """Return the field of a key of this hash. Raises DecodeError if it is another key."""
    prefix = meta_prefix(name, META_HASH)
    if not key.startswith(prefix):
        raise DecodeError("meta key", offset=0, detail=f"not a field of the hash {name!r}")
    field, end = decode_bytes(key, len(prefix))
    if end != len(key):
        raise DecodeError("meta key", offset=end, detail="bytes after the key")
    return field
