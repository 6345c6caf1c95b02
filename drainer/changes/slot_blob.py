"""Slots: which keys they have, and their blobs in pieces. This module imports little.

A slot's blob is split into pieces of at most a few MiB, which the JVM can handle as one value, and these are joined
after the shuffle. Before each blob are the totals of its part: the number of binlogs, their bytes, and how many of them
are left out (each 8 bytes, little-endian).

Piece: 8 random bytes that all pieces of a blob share, its number and how many there are (each 4 bytes, little-endian),
then the bytes. Pieces leave a shuffle in any order.

If all tasks run on one machine, blobs are stored in files, and only references pass through the JVM: a head in which
the number of pieces is 0, the blob's offset and length in the file (each 8 bytes), and the file's path. Through the JVM
a blob is copied six times and compressed, which is a third of a batch's CPU beside the destination's. A task writes one
file with the blobs of all its slots. The files of a batch are in a folder of their own. The folder is removed when no
reference to the batch is left, at the latest when its query has ended (drainer.spark.query). Files left by a killed
drainer are removed with its temporary folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from struct import Struct
from struct import error as StructError
from zlib import crc32

from binlog.errors import BinlogError

# The assignment of keys to slots is part of a recorded intent: a change of it needs a new HASH_VERSION (rule 16).
# 2: tables with text keys are cut with those that have secondary unique keys (sink/mysql/rows/slot_writer.py).
# 3: tables that upsert and have several unique keys stay in order (row/layout.py).
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
    """Return the start value of the CRC-32 of a key's identity: that of the table id, 8 bytes, big-endian. The key's
    slot is its CRC-32 modulo the number of slots."""
    return crc32(table_id.to_bytes(8, "big", signed=True))


PIECE_BYTES_MAX = 4 << 20


class BlobError(BinlogError):
    """A slot's blob is of another version or damaged."""


_HEAD = Struct("<8sII")
_BLOB_OFFSET = Struct("<QQ")
_TOTALS = Struct("<QQQ")


def folder_of(base: str, after_ts: int, until_ts: int) -> str:
    """Return the folder of the batch (after_ts, until_ts]; empty without a `base`, which is the folder of the query."""
    return os.path.join(base, f"{after_ts}-{until_ts}") if base else ""  # noqa: PTH118  a task's value, without pathlib


def write_blobs(folder: str, slots: Mapping[int, bytes], head: bytes = b"") -> dict[int, bytes]:
    """Write the blobs into a new file, each after `head`. Return slot → reference to both. Raises OSError if the file
    cannot be written; the file is removed then."""
    path = Path(folder) / uuid.uuid4().hex
    references, offset = {}, 0
    try:
        with path.open("xb") as file:
            for slot, blob in slots.items():
                file.write(head)
                file.write(blob)
                length = len(head) + len(blob)
                references[slot] = _HEAD.pack(b"", 0, 0) + _BLOB_OFFSET.pack(offset, length) + os.fsencode(path)
                offset += length
    except BaseException:
        path.unlink(missing_ok=True)  # on a full disk it would occupy the space that the next attempt needs
        raise
    return references


def _read(reference: bytes) -> bytes:
    """Read a blob from its file. Raises BlobError if the reference or the file is too short, OSError if the file does
    not exist."""
    try:
        offset, length = _BLOB_OFFSET.unpack_from(reference, _HEAD.size)
    except StructError as error:
        raise BlobError(f"the reference to a slot's blob has {len(reference)} bytes: {error}") from None
    path = os.fsdecode(reference[_HEAD.size + _BLOB_OFFSET.size :])
    with Path(path).open("rb") as file:  # buffered: a single read call of the kernel returns at most 2 GiB
        file.seek(offset)
        found = file.read(length)
    if len(found) != length:
        raise BlobError(f"a slot's blob in {path} has {len(found)} of its {length} bytes")
    return found


def cut_blob(blob: bytes, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[bytes]:
    """Pieces of at most `bytes_max` and a head; one for an empty blob."""
    name, view = os.urandom(8), memoryview(blob)
    total = max(1, -(-len(blob) // bytes_max))
    for number in range(total):
        yield _HEAD.pack(name, number, total) + view[number * bytes_max : (number + 1) * bytes_max]


def join_blobs(pieces: Iterable[bytes]) -> list[bytes]:
    """Return the blobs that the pieces are of, in no order. Raises BlobError if one is not whole, OSError if a file
    cannot be read."""
    blobs = []
    found: dict[bytes, dict[int, bytes]] = {}
    totals: dict[bytes, int] = {}
    for piece in pieces:
        if len(piece) < _HEAD.size:
            raise BlobError(f"a piece of a slot's blob has {len(piece)} bytes")
        name, number, total = _HEAD.unpack_from(piece)
        if not total:
            blobs.append(_read(piece))
            continue
        found.setdefault(name, {})[number] = piece
        totals[name] = total
    for name, parts in found.items():
        if sorted(parts) != list(range(totals[name])):
            raise BlobError(f"a slot's blob has {len(parts)} of its {totals[name]} pieces")
        blobs.append(b"".join(memoryview(parts[n])[_HEAD.size :] for n in range(totals[name])))
    return blobs


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a part: `count` binlogs of `size` bytes, of which loopback-control leaves `left_out` out."""

    count: int
    size: int
    left_out: int

    def packed(self) -> bytes:
        """The bytes that `with_totals` puts in front of each blob."""
        return _TOTALS.pack(self.count, self.size, self.left_out)


def with_totals(blobs: Mapping[int, bytes], slots: int, totals: Totals) -> dict[int, bytes]:
    """Every slot's blob of a part, empty for a slot without rows, after the totals of the part. So each slot gets the
    totals of all parts, and detects a missing one (rule 22)."""
    packed = totals.packed()
    return {slot: packed + blobs.get(slot, b"") for slot in range(slots)}


def split_totals(marked: bytes) -> tuple[Totals, bytes]:
    """(totals, blob) from a result of `with_totals`. Raises BlobError."""
    if len(marked) < _TOTALS.size:
        raise BlobError(f"a slot's blob of {len(marked)} bytes is damaged: it lacks its totals")
    return Totals(*_TOTALS.unpack_from(marked)), marked[_TOTALS.size :]
