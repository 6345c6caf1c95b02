"""Bytes of many rows at once: a piece of each row as a matrix with a mask, and pieces joined to rows. Pure.

Avro's numbers are zigzag varints, its texts and bytes have their length before them: both are short and of differing
length, so a block keeps them in a matrix of bytes, one row a row, and says which of them count. Blocks that stand
beside one another are joined before anything is copied out of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.vector import Ints, Mask, Words
from drainer.protocol.encoded_columns import as_large

Octets = npt.NDArray[np.uint8]
_U64 = np.uint64
_EMPTY: Final = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class Block:
    """`octets` and `keep` have one shape, (rows, width): of each row the bytes that are kept, in their order."""

    octets: Octets
    keep: Mask


# A piece of each row: a block, or an Arrow array of bytes, where NULL is no bytes.
Piece = Any


def zigzag_of(values: Ints) -> Words:
    """The unsigned form of signed numbers."""
    found: Words = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return found


def varints(values: Ints) -> Block:
    """Avro's int and long."""
    return uvarints(zigzag_of(values))


def uvarints(raw: Words) -> Block:
    """Unsigned varints, as protobuf has them too."""
    width = max(1, -(-int(raw.max(initial=0)).bit_length() // 7))
    octets = np.empty((len(raw), width), np.uint8)
    keep = np.ones((len(raw), width), np.bool_)
    for at in range(width):
        group = (raw >> _U64(7 * at)).astype(np.uint8)
        if at + 1 == width:
            octets[:, at] = group & 0x7F
            break
        more = raw >= _U64(1 << 7 * (at + 1))
        octets[:, at] = (group & 0x7F) | (more.view(np.uint8) << 7)
        keep[:, at + 1] = more
    return Block(octets, keep)


def fixed(octets: Octets) -> Block:
    """Every byte of a matrix."""
    return Block(octets, np.ones(octets.shape, np.bool_))


def constant(data: bytes, rows: int) -> Block:
    """The same bytes in every row."""
    return fixed(np.broadcast_to(np.frombuffer(data, np.uint8), (rows, len(data))))


def big_endian(octets: Octets, signed: bool) -> Block:
    """Numbers whose bytes stand in big-endian order, without the bytes that say nothing, their count before them."""
    rows, width = octets.shape
    sign = (octets[:, :1] >> 7) * 0xFF if signed else np.zeros((rows, 1), np.uint8)
    differs = octets != sign
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
    if signed:  # the first byte that is kept says the sign
        top = octets[np.arange(rows), np.minimum(first, width - 1)]
        first -= (first < width) & ((top ^ sign[:, 0]) >= 0x80)
    first = np.minimum(first, width - 1)
    keep = np.arange(width) >= first[:, None]
    count = varints((width - first).astype(np.int64))
    return beside(count, Block(octets, keep))


def beside(*blocks: Block) -> Block:
    return Block(np.hstack([b.octets for b in blocks]), np.hstack([b.keep for b in blocks]))


def lengths(array: Any) -> Block:
    """How many bytes each value of a binary or string array has, as Avro has it before them. NULL counts as none."""
    return varints(offsets_of(array))


def offsets_of(array: Any) -> Ints:
    """The length of each value."""
    places = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return np.diff(places).astype(np.int64)


def in_union(block: Block, valid: Mask | None, null_first: bool) -> Block:
    """With the branch of a union of null and the block's type before it. `valid` None: no row is NULL."""
    rows = len(block.octets)
    value, null = (2, 0) if null_first else (0, 2)
    if valid is None:
        return beside(constant(bytes((value,)), rows), block)
    branch = np.where(valid, value, null).astype(np.uint8)[:, None]
    return beside(fixed(branch), Block(block.octets, block.keep & valid[:, None]))


def joined(pieces: Sequence[Piece], rows: int) -> Any:
    """The bytes of each row, `large_binary`."""
    arrays = list(_arrays(pieces))
    if not arrays:
        return pa.array([b""] * rows, pa.large_binary())
    return as_large(arrays[0] if len(arrays) == 1 else _join(arrays))


def _join(arrays: Sequence[Any]) -> Any:
    return pc.binary_join_element_wise(*arrays, _EMPTY, null_handling="replace", null_replacement=b"")


def _arrays(pieces: Iterable[Piece]) -> Iterable[Any]:
    waiting: list[Block] = []
    for piece in pieces:
        if isinstance(piece, Block):
            waiting.append(piece)
            continue
        if waiting:
            yield _array(waiting)
            waiting = []
        yield piece
    if waiting:
        yield _array(waiting)


def _array(blocks: Sequence[Block]) -> Any:
    whole = blocks[0] if len(blocks) == 1 else beside(*blocks)
    data = whole.octets[whole.keep]
    places = np.zeros(len(whole.keep) + 1, np.int64)
    np.cumsum(whole.keep.sum(axis=1), out=places[1:])
    if places[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{len(whole.keep)} rows of {places[-1]} bytes in one array")
    buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(whole.keep), buffers)
