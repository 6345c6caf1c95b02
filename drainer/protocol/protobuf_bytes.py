"""Builds protobuf messages from bytes: varints, and fields with their tags. Pure."""

from __future__ import annotations

from typing import Final

from binlog.tidb.varint import encode_uvarint

_KEPT_MAX: Final = 1 << 16  # larger numbers are encoded each time
_U64: Final = (1 << 64) - 1


class Varints(dict[int, bytes]):
    """Maps numbers to unsigned varints. Small ones are encoded once. Raises ValueError outside 0 … 2^64-1."""

    def __missing__(self, value: int) -> bytes:
        found = encode_uvarint(value)
        if value < _KEPT_MAX:
            self[value] = found
        return found


VARINTS: Final = Varints()


def signed(value: int) -> bytes:
    """Return the varint of an int64 or int32. The varint of a negative number has ten bytes."""
    return VARINTS[value & _U64]


def field(tag: bytes, payload: bytes) -> bytes:
    """Return a field that holds bytes, text or a message."""
    return tag + VARINTS[len(payload)] + payload
