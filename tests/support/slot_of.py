"""The slot of one key, as rows are divided by (rule 16)."""

from __future__ import annotations

from zlib import crc32

from drainer.changes.slot_blob import table_seed


def slot_of(table_id: int, identity: bytes, slots: int) -> int:
    """CRC-32 of the table id (8 bytes, big-endian) and the key's identity, modulo `slots`."""
    return crc32(identity, table_seed(table_id)) % slots
