"""A slot's blob cut for its way through the JVM, where no value may be above a few MiB, and joined behind the shuffle.

Piece: 8 random bytes that all pieces of a blob share, its number and how many there are (each 4 bytes, little-endian),
then the bytes. Pieces come out of a shuffle in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from struct import Struct

from drainer.order.errors import BlobError

PIECE_BYTES_MAX = 4 << 20

_HEAD = Struct("<8sII")


def cut_blob(blob: bytes, bytes_max: int = PIECE_BYTES_MAX) -> Iterator[bytes]:
    """Pieces of at most `bytes_max` and a head; one for an empty blob."""
    name, view = os.urandom(8), memoryview(blob)
    total = max(1, -(-len(blob) // bytes_max))
    for number in range(total):
        yield _HEAD.pack(name, number, total) + view[number * bytes_max : (number + 1) * bytes_max]


def join_blobs(pieces: Iterable[bytes]) -> list[bytes]:
    """The blobs that the pieces are of, in no order. BlobError where one is not whole."""
    found: dict[bytes, dict[int, bytes]] = {}
    totals: dict[bytes, int] = {}
    for piece in pieces:
        if len(piece) < _HEAD.size:
            raise BlobError(f"a piece of a slot's blob has {len(piece)} bytes")
        name, number, total = _HEAD.unpack_from(piece)
        found.setdefault(name, {})[number] = piece
        totals[name] = total
    blobs = []
    for name, parts in found.items():
        if sorted(parts) != list(range(totals[name])):
            raise BlobError(f"a slot's blob has {len(parts)} of its {totals[name]} pieces")
        blobs.append(b"".join(memoryview(parts[n])[_HEAD.size :] for n in range(totals[name])))
    return blobs
