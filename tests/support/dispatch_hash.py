"""The hash by which TiCDC chooses partitions, for one row."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32


def hash_of(groups: Iterable[Iterable[bytes]]) -> int:
    """Return the combined hash of groups of byte strings. The order of the groups does not matter."""
    found = 0
    for group in groups:
        found ^= crc32(b"".join(group))
    return found
