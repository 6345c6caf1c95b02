"""Splits a slot's blob into pieces of at most a few MiB, which the JVM can handle as one value, and joins them after
the shuffle. Before each blob are the totals of its part: the number of binlogs, their bytes, and how many of them are
left out (each 8 bytes, little-endian).

Piece: 8 random bytes that all pieces of a blob share, its number and how many there are (each 4 bytes, little-endian),
then the bytes. Pieces leave a shuffle in any order. If all tasks run on one machine, a blob is stored in a file, and
only a reference passes through the JVM: a head in which the number of pieces is 0, the blob's offset and length in the
file (each 8 bytes), and the file's path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from binlog.errors import BinlogError

PIECE_BYTES_MAX = 4 << 20


class BlobError(BinlogError):
    """A slot's blob is of another version or damaged."""


_HEAD = Struct("<8sII")
_BLOB_OFFSET = Struct("<QQ")
_TOTALS = Struct("<QQQ")


class BlobOffset(NamedTuple):
    """The location of a blob in a file."""

    path: str
    offset: int
    length: int


def refer(blob_offset: BlobOffset) -> bytes:
    """The reference to a blob in a file."""
    return (
        _HEAD.pack(b"", 0, 0)
        + _BLOB_OFFSET.pack(blob_offset.offset, blob_offset.length)
        + os.fsencode(blob_offset.path)
    )


def cut_blob(blob: bytes, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[bytes]:
    """Pieces of at most `bytes_max` and a head; one for an empty blob."""
    name, view = os.urandom(8), memoryview(blob)
    total = max(1, -(-len(blob) // bytes_max))
    for number in range(total):
        yield _HEAD.pack(name, number, total) + view[number * bytes_max : (number + 1) * bytes_max]


def join_blobs(pieces: Iterable[bytes], read: Callable[[BlobOffset], bytes] | None = None) -> list[bytes]:
    """The blobs that the pieces are of, in no order. `read`: gives the blob of a reference; None where there can be
    none. BlobError where one is not whole; what `read` raises."""
    referred = []
    found: dict[bytes, dict[int, bytes]] = {}
    totals: dict[bytes, int] = {}
    for piece in pieces:
        if len(piece) < _HEAD.size:
            raise BlobError(f"a piece of a slot's blob has {len(piece)} bytes")
        name, number, total = _HEAD.unpack_from(piece)
        if not total:
            referred.append(_blob_offset(piece))
            continue
        found.setdefault(name, {})[number] = piece
        totals[name] = total
    if referred and read is None:
        raise BlobError(f"a slot's blob lies in a file: {referred[0].path}")
    blobs = [read(blob_offset) for blob_offset in referred] if read is not None else []
    for name, parts in found.items():
        if sorted(parts) != list(range(totals[name])):
            raise BlobError(f"a slot's blob has {len(parts)} of its {totals[name]} pieces")
        blobs.append(b"".join(memoryview(parts[n])[_HEAD.size :] for n in range(totals[name])))
    return blobs


def _blob_offset(piece: bytes) -> BlobOffset:
    try:
        offset, length = _BLOB_OFFSET.unpack_from(piece, _HEAD.size)
    except StructError as error:
        raise BlobError(f"the reference to a slot's blob has {len(piece)} bytes: {error}") from None
    return BlobOffset(os.fsdecode(piece[_HEAD.size + _BLOB_OFFSET.size :]), offset, length)


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
