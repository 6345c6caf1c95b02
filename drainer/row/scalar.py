"""Values of one column as text or numbers, whatever the destination. Pure.

Every function raises DecodeError for what no TiDB column of that type holds.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import isfinite

from binlog.errors import DecodeError

_float32 = struct.Struct("<f")
FLOAT_MAX = 3.4028234663852886e38
TIMES_MAX = 65_536  # entries of the cache of dates and times


def is_utf8(text: bytes) -> bool:
    """Whether a server reads the bytes as utf8mb4 (Python's decoder refuses surrogates and overlong forms too)."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def double_text(value: float) -> str:
    """Shortest digits that give the same double."""
    if not isfinite(value):
        raise DecodeError("double", offset=0, detail=f"{value} is no column value")
    return repr(value)


def float_text(value: float) -> str:
    """Shortest digits that give the same single: read as a double and rounded, as MySQL and MariaDB do."""
    return _float_text(value) if value else repr(value)  # 0.0 and -0.0 are one key of a cache


@lru_cache(maxsize=4096)
def _float_text(value: float) -> str:
    if not isfinite(value):
        raise DecodeError("float", offset=0, detail=f"{value} is no column value")
    try:
        packed = _float32.pack(value)
    except OverflowError:
        raise DecodeError("float", offset=0, detail=f"{value} does not fit 4 bytes") from None
    for digits in range(6, 10):
        text = repr(float(f"{value:.{digits}g}"))
        # The largest single's short forms are beyond it, and servers refuse them.
        if abs(float(text)) <= FLOAT_MAX and _float32.pack(float(text)) == packed:
            return text
    return repr(value)


def enum_index(value: int, count: int) -> int:
    """0 (the error value) for an index beyond the names, as TiDB shows it (F-01)."""
    return value if 0 <= value <= count else 0


def enum_name(value: int, names: tuple[str, ...]) -> str:
    return names[value - 1] if 0 < value <= len(names) else ""


def set_bits(value: int, count: int) -> int:
    if not 0 <= value < 1 << count:
        raise DecodeError("SET", offset=0, detail=f"invalid number {value} for a set of {count}")
    return value


def bit_number(value: int, width: int) -> int:
    if not 0 <= value < 1 << width:
        raise DecodeError("bit value", offset=0, detail=f"{value} does not fit BIT({width})")
    return value


def set_names(value: int, names: tuple[str, ...]) -> str:
    set_bits(value, len(names))
    return ",".join([name for n, name in enumerate(names) if value >> n & 1])


def small_int(value: int) -> int | str:
    """For SQLite, whose integers end at 2^63-1: larger ones are text."""
    return value if value <= 0x7FFF_FFFF_FFFF_FFFF else str(value)


def _nine_bytes(raw: bytes) -> int:
    """A uvarint of exactly 9 bytes, which every packed time of the years 79 to 9999 is. ValueError otherwise."""
    value = int.from_bytes(raw, "little")
    if len(raw) != 9 or value & 0x80_80808080_80808080 != 0x00_80808080_80808080:
        raise ValueError("not a uvarint of 9 bytes")
    at = packed = 0
    for byte in raw:
        packed |= (byte & 127) << at
        at += 7
    return packed


class PackedTimes(dict[bytes, int]):
    """Packed times by their 9 bytes in a row; they repeat. Raises ValueError on other bytes."""

    def __missing__(self, raw: bytes) -> int:
        packed = _nine_bytes(raw)
        if len(self) >= TIMES_MAX:
            self.clear()
        self[raw] = packed
        return packed
