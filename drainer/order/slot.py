"""Assigns keys to slots. The assignment is part of a recorded intent: a change here needs a new HASH_VERSION (rule
16)."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

# 2: tables with text keys are cut with those that have secondary unique keys (sink/mysql/chunks.py).
# 3: tables that upsert and have several unique keys stay in order (row/key.py).
# 5: the ordered slot has the changes of all tables without a key (4: those of TiDB's tables came with the intent).
HASH_VERSION = 5
# The version of batches whose transactions are shown whole: rows are assigned by groups (changes/groups.py).
GROUPS_VERSION = 101

# Changes that must stay in order go to one slot whole, the same for every partition of a batch.
ORDERED_SLOT = 0
# The slot with what the transactions of a part have in common (changes/groups.py).
LINKS_SLOT = 0


@lru_cache(maxsize=4096)
def table_seed(table_id: int) -> int:
    return crc32(table_id.to_bytes(8, "big", signed=True))


def slot_of(table_id: int, identity: bytes, slots: int) -> int:
    """CRC-32 of the table id (8 bytes, big-endian) and the key's identity, modulo `slots`."""
    return crc32(identity, table_seed(table_id)) % slots
