"""Whether LevelDB's manifest, which lists its tables, has lost a record in its middle. Read before LevelDB opens it.

LevelDB's reader steps over a page of zeros without a word and goes on at the next block: tables that were listed there
are then deleted as unknown. The file is LevelDB's log format: blocks of 32 KiB, in each records of a header (masked
CRC-32C of type and data, length u16, type u8) and data, and less than a header's bytes of zeros at its end.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

from google_crc32c import value as crc32c

BLOCK_BYTES = 32 << 10
_HEADER = Struct("<IHB")
_MASK_DELTA = 0xA282EAD8


def unbroken(data: bytes) -> bool:
    """No whole record follows bytes that are none. A file that was cut anywhere is unbroken."""
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
    """As `unbroken`, of the manifest in use; True where there is none: LevelDB makes an empty index, or refuses."""
    try:
        name = (directory / "CURRENT").read_text().strip()
        return unbroken((directory / name).read_bytes())
    except (OSError, UnicodeDecodeError, ValueError):
        return True


def _masked(data: bytes) -> int:
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
