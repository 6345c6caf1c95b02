"""Builds the bytes of many rows at a time: a block holds a piece of each row, and pieces are joined to rows. Pure.

Avro's numbers are zigzag varints, and its texts and bytes have their length in front. The encoded numbers and lengths
are short, but not equally long. So a block keeps them in a matrix of bytes, with one line for each row, and a mask of
the bytes that count. Consecutive blocks are joined before any bytes are copied out of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError

from drainer.changes.texts import numbers_of, offsets_of
from drainer.changes.vector import Ints, Mask, Words
from drainer.protocol.avro.schema import Field
from drainer.protocol.column_text import texts_of
from drainer.row.column_type import ColumnType, TypeClass

Octets = npt.NDArray[np.uint8]
_U64 = np.uint64
_EMPTY: Final = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of many rows. `octets` and `keep` have the same shape, (rows, width): a row's bytes are its kept octets, in
    their order."""

    octets: Octets
    keep: Mask


# One piece of each row: a block, or an Arrow array of bytes, where NULL stands for no bytes.
Piece = Any


def varints(values: Ints) -> Block:
    """Encode signed numbers as Avro's int and long, whose zigzag form is unsigned."""
    return uvarints(((values << 1) ^ (values >> 63)).view(np.uint64))


def uvarints(raw: Words) -> Block:
    """Encode unsigned numbers as varints, which protobuf uses too."""
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
    """Return a block that keeps every byte of a matrix."""
    return Block(octets, np.ones(octets.shape, np.bool_))


def constant(data: bytes, rows: int) -> Block:
    """Return a block with the same bytes in every row."""
    return fixed(np.broadcast_to(np.frombuffer(data, np.uint8), (rows, len(data))))


def big_endian(octets: Octets, signed: bool) -> Block:
    """Encode numbers given as big-endian bytes: the number of bytes, then the bytes without redundant leading ones."""
    rows, width = octets.shape
    sign = (octets[:, :1] >> 7) * 0xFF if signed else np.zeros((rows, 1), np.uint8)
    differs = octets != sign
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
    if signed:  # the first kept byte contains the sign
        top = octets[np.arange(rows), np.minimum(first, width - 1)]
        first -= (first < width) & ((top ^ sign[:, 0]) >= 0x80)
    first = np.minimum(first, width - 1)
    keep = np.arange(width) >= first[:, None]
    count = varints((width - first).astype(np.int64))
    return beside(count, Block(octets, keep))


def beside(*blocks: Block) -> Block:
    return Block(np.hstack([b.octets for b in blocks]), np.hstack([b.keep for b in blocks]))


def lengths(array: Any) -> Block:
    """Return the encoded length of each value of a binary or string array, as Avro has it in front of the value. The
    length of NULL is 0."""
    return varints(byte_lengths(array))


def byte_lengths(array: Any) -> Ints:
    """Return the length of each value in bytes, 0 for NULL. Arrow allows a NULL to have bytes in the buffer."""
    found = np.diff(offsets_of(array)).astype(np.int64)
    if array.null_count:
        found[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def in_union(block: Block, column: Any, value: int, null: int) -> Block:
    """Put the branch of a union in front of each row. `column`: the values in the block; `value`, `null`: the encoded
    branches of the block's type and of null, a byte each."""
    if not column.null_count:
        return beside(constant(bytes((value,)), len(column)), block)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    branch = np.where(valid, value, null).astype(np.uint8)[:, None]
    return beside(fixed(branch), Block(block.octets, block.keep & valid[:, None]))


def joined(pieces: Sequence[Piece], rows: int) -> Any:
    """Concatenate the pieces of each row. Return the rows as `large_binary`."""
    arrays = list(_arrays(pieces))
    if not arrays:
        return pa.array([b""] * rows, pa.large_binary())
    if len(arrays) > 1:
        arrays = [pc.binary_join_element_wise(*arrays, _EMPTY, null_handling="replace", null_replacement=b"")]
    return arrays[0].cast(pa.large_binary())


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
    offsets = np.zeros(len(whole.keep) + 1, np.int64)
    np.cumsum(whole.keep.sum(axis=1), out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{len(whole.keep)} rows of {offsets[-1]} bytes in one array")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(whole.keep), buffers)


_INT_MAX: Final = 0x7FFF_FFFF
_ROUND: Final = 1 << 31


def pieces_of(field: Field, column_type: ColumnType, column: Any, zone: tzinfo) -> list[Piece]:
    """Encode an Arrow array of decoded values. Raises DecodeError, which does not name the row, for a value that Avro
    or the column's type cannot hold."""
    if field.null_first is None and column.null_count:
        raise DecodeError("value", offset=0, detail="NULL in a column that is NOT NULL")
    primitive = field.type.primitive
    rest: list[Piece] = []
    if field.type.precision is not None:
        block = _decimal(field, column)
    elif primitive in ("int", "long"):
        block = _whole(primitive, column)
    elif primitive in ("float", "double"):
        block = real(primitive, column)
    elif column_type.type_class is TypeClass.BIT:
        octets = filled(numbers_of(column_type, column)).astype(">u8").view(np.uint8)
        block = big_endian(octets.reshape(len(column), 8), signed=False)
    else:
        text = texts_of(column_type, column, zone)
        block, rest = lengths(text), [text]
    if field.null_first is None:
        return [block, *rest]
    value, null = (2, 0) if field.null_first else (0, 2)
    return [in_union(block, column, value, null), *rest]


def filled(column: Any, value: int | float = 0) -> Any:
    """Return a NumPy array in which `value` replaces NULL. The union's mask hides these entries."""
    return pc.fill_null(column, value).to_numpy(zero_copy_only=False) if column.null_count else column.to_numpy()


def _whole(primitive: str, column: Any) -> Block:
    values = filled(column)
    if primitive == "int" and len(values) and not -_ROUND <= int(values.min()) <= int(values.max()) <= _INT_MAX:
        raise DecodeError("integer", offset=0, detail="beyond 32 bits")
    return varints(values.view(np.int64))  # an unsigned number above 2^63-1 becomes negative, as in TiCDC


def real(primitive: str, column: Any) -> Block:
    """Encode floating-point numbers. Raises DecodeError for one that is beyond the range of `primitive`."""
    values = filled(column, 0.0)
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, "<f4" if primitive == "float" else "<f8")
    if not np.isfinite(values).all():
        raise DecodeError(primitive, offset=0, detail="no number, or beyond its range")
    return fixed(values.view(np.uint8).reshape(len(values), -1))


def _decimal(field: Field, column: Any) -> Block:
    """Encode decimals. `column`: their texts. Numbers of up to 18 digits, which are nearly all, are 8 bytes wide here,
    larger ones 16 or 32."""
    precision, scale = field.type.precision, field.type.scale
    assert precision is not None and scale is not None
    wide = precision > 38
    try:
        made = pc.cast(column, pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale))
    except pa.ArrowInvalid as error:
        raise DecodeError("decimal", offset=0, detail=str(error)) from None
    width = 32 if wide else 16
    octets = np.zeros((len(column), width), np.uint8)
    if len(column):
        octets = np.frombuffer(made.buffers()[1], np.uint8, len(column) * width, made.offset * width)
        octets = octets.reshape(len(column), width)
    if column.null_count:
        octets = octets * made.is_valid().to_numpy(zero_copy_only=False)[:, None]  # NULLs hold arbitrary bytes
    used = 8 if precision <= 18 else width
    return big_endian(octets[:, used - 1 :: -1] if used == width else octets[:, :used][:, ::-1], signed=True)
