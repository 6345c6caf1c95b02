"""Keys of the key-value store: records, and TiDB's own meta data.

record `t` ‖ cmpint(table) ‖ `_r` ‖ handle;  meta `m` ‖ membytes(key) ‖ be64(kind) [‖ membytes(field)]. The table id is
the physical one (a partition's own).
"""

from __future__ import annotations

from typing import TypeAlias

from .datum import Datum, encode_key
from .memcomparable import encode_bytes
from .number import encode_int

Handle: TypeAlias = "int | tuple[Datum, ...]"  # int handle, or the columns of a clustered key

TABLE_PREFIX = b"t"
RECORD = b"_r"
META_PREFIX = b"m"
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


def meta_hash_key(name: bytes, field: bytes) -> bytes:
    """Return the key of a hash field, for example hash `DBs`, field `DB:1`."""
    return META_PREFIX + encode_bytes(name) + _HASH + encode_bytes(field)
