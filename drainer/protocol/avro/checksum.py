"""TiDB's checksum of a row: CRC-32 over its columns in the order of their ids."""

from __future__ import annotations

import struct
from math import isfinite
from zlib import crc32


def row_checksum(parts: list[bytes]) -> int:
    """Return the CRC-32 of a row. `parts`: the bytes of each column's value, ordered by column id."""
    return crc32(b"".join(parts))


def number_part(number: int) -> bytes:
    """Return the bytes of an integer, ENUM, SET, BIT or YEAR. A negative number is its 64-bit two's complement."""
    return (number & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")


def real_part(number: float) -> bytes:
    """Return the bytes of a FLOAT or DOUBLE."""
    return struct.pack("<d", number if isfinite(number) else 0.0)


def bytes_part(data: bytes) -> bytes:
    """Return the bytes of a text, binary string, decimal, JSON, date or time. A TIMESTAMP's text is in UTC."""
    return len(data).to_bytes(4, "little") + data


def vector_part(text: str) -> bytes:
    """Return the bytes of a vector of 32-bit floats, from `[1,2,3]`. Raises ValueError for any other text."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(f"{text!r} is not a vector")
    inner = text[1:-1].strip()
    numbers = [float(one) for one in inner.split(",")] if inner else []
    return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
