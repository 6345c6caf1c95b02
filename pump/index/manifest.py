"""Checks whether LevelDB's manifest, the list of its tables, has lost a record. Runs before LevelDB opens.

LevelDB's reader skips a page of zeros silently and continues at the next block. It then deletes the tables that were
listed there, because it does not know them. The file has LevelDB's log format: blocks of 32 KiB. A block holds records
of a header (masked CRC-32C of type and data, length u16, type u8) and data; at its end are zeros, fewer than a header's
bytes.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

from google_crc32c import value as crc32c

BLOCK_BYTES = 32 << 10
_HEADER = Struct("<IHB")
_MASK_DELTA = 0xA282EAD8


def unbroken(data: bytes) -> bool:
    """Return whether no complete record follows bytes that are not a record. A truncated file is unbroken."""
    broken = False
    for begin in range(0, len(data), BLOCK_BYTES):
        at, end = begin, min(begin + BLOCK_BYTES, len(data))
        while end - at >= _HEADER.size:
            masked, length, kind = _HEADER.unpack_from(data, at)
            past = at + _HEADER.size + length
            if past > end or kind == 0 or _masked(data[at + 6 : past]) != masked:
                broken = True
                break
            if broken:
                return False
            at = past
    return True


def manifest_unbroken(directory: Path) -> bool:
    """Return whether the manifest in use is unbroken. If there is none, return True: LevelDB then makes an empty index
    or refuses to open."""
    try:
        name = (directory / "CURRENT").read_text().strip()
        return unbroken((directory / name).read_bytes())
    except (OSError, UnicodeDecodeError, ValueError):
        return True


def _masked(data: bytes) -> int:
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
