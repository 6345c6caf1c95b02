"""TiDB's checksum of a row: CRC-32 over its columns in the order of their ids."""

from __future__ import annotations

import struct
from math import isfinite
from zlib import crc32


def row_checksum(parts: list[bytes]) -> int:
    """CRC-32 of a row. `parts`: the bytes of each column's value, ordered by column id."""
    return crc32(b"".join(parts))


def number_part(number: int) -> bytes:
    """Of whole numbers, ENUMs, SETs, BITs and YEARs; signed ones below 0 are what they are in 64 bits."""
    return (number & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")


def real_part(number: float) -> bytes:
    """Of FLOAT and DOUBLE."""
    return struct.pack("<d", number if isfinite(number) else 0.0)


def bytes_part(data: bytes) -> bytes:
    """Of texts, bytes, decimals, JSON, dates and times; a TIMESTAMP's text is that of UTC."""
    return len(data).to_bytes(4, "little") + data


def vector_part(text: str) -> bytes:
    """Of a vector of singles, from `[1,2,3]`. Raises ValueError for another text."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(f"{text!r} is no vector")
    inner = text[1:-1].strip()
    numbers = [float(one) for one in inner.split(",")] if inner else []
    return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
