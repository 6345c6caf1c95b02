"""Bytes of many rows at once, against what each row has alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.avro.blocks import (
    Block,
    big_endian,
    byte_lengths,
    constant,
    fixed,
    in_union,
    joined,
    lengths,
    varints,
)
from drainer.protocol.avro.types import twos_complement

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
EDGES = st.sampled_from([sign * (1 << bits) + more for bits in range(63) for sign in (1, -1) for more in (-1, 0, 1)])


def varint(number: int) -> bytes:
    raw, found = (number << 1) ^ (number >> 63), bytearray()
    while raw > 0x7F:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes((*found, raw))


def rows_of(block: Block) -> list[bytes]:
    return [octets[keep].tobytes() for octets, keep in zip(block.octets, block.keep, strict=True)]


@given(st.lists(LONGS | EDGES))
def test_varints_of_array_equal_those_of_each_number(numbers: list[int]) -> None:
    block = varints(np.array(numbers, np.int64))
    assert rows_of(block) == [varint(number) for number in numbers]
    if numbers:
        assert joined([block], len(numbers)).to_pylist() == rows_of(block)


@given(st.lists(EDGES | LONGS))
def test_big_endian_of_signed_numbers_takes_fewest_bytes(numbers: list[int]) -> None:
    octets = np.array(numbers, ">i8").view(np.uint8).reshape(len(numbers), 8)
    expected = [bytes((len(data) * 2,)) + data for data in map(twos_complement, numbers)]
    assert rows_of(big_endian(octets, signed=True)) == expected
    wide = np.hstack([np.repeat((octets[:, :1] >> 7) * 0xFF, 8, axis=1), octets]).astype(np.uint8)
    assert rows_of(big_endian(wide, signed=True)) == expected


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 127, 128, 255, 256, (1 << 64) - 1])))
def test_big_endian_of_unsigned_numbers_takes_fewest_bytes(numbers: list[int]) -> None:
    octets = np.array(numbers, ">u8").view(np.uint8).reshape(len(numbers), 8)
    data = [number.to_bytes(max(1, -(-number.bit_length() // 8)), "big") for number in numbers]
    assert rows_of(big_endian(octets, signed=False)) == [bytes((len(one) * 2,)) + one for one in data]


@given(st.lists(st.tuples(LONGS, st.binary(max_size=90) | st.none()), min_size=1), st.booleans())
def test_joined_pieces_keep_their_order_for_sliced_arrays(
    rows: list[tuple[int, bytes | None]], null_first: bool
) -> None:
    """Also where the arrays are slices of others."""
    padded = pa.array([b"before", *(text for _, text in rows), b"behind"], pa.binary()).slice(1, len(rows))
    valid = padded.is_valid().to_numpy(zero_copy_only=False)
    numbers = varints(np.array([number for number, _ in rows], np.int64))
    pieces = [constant(b"<", len(rows)), in_union(lengths(padded), valid, null_first), padded, numbers]
    value, null = (b"\2", b"\0") if null_first else (b"\0", b"\2")
    assert joined(pieces, len(rows)).to_pylist() == [
        b"<" + (null if text is None else value + varint(len(text)) + text) + varint(number) for number, text in rows
    ]


def test_joined_without_pieces_or_rows_gives_empty_values() -> None:
    assert joined([], 2).to_pylist() == [b"", b""]
    assert joined([constant(b"x", 0)], 0).to_pylist() == []
    assert joined([fixed(np.zeros((1, 0), np.uint8))], 1).to_pylist() == [b""]


def test_byte_length_of_null_is_0_with_bytes_in_its_buffer() -> None:
    places = pa.py_buffer(np.array([0, 2, 5, 6], np.int32))
    array = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), places, pa.py_buffer(b"abcdef")])
    assert array.to_pylist() == [b"ab", None, b"f"]
    assert byte_lengths(array).tolist() == [2, 0, 1]
    assert byte_lengths(array[1:]).tolist() == [0, 1]
    assert joined([lengths(array), array], 3).to_pylist() == [b"\x04ab", b"\x00", b"\x02f"]
