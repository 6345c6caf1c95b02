"""Bytes of many rows at once, against what each row has alone."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.time import Civil, pack, timestamp_text
from binlog.tidb.types import FieldType, Tp
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
from drainer.protocol.avro.schema import twos_complement
from drainer.protocol.column_text import texts_of
from drainer.row.column_type import ColumnType
from tests.unit.drainer.protocol.avro.cases import INSTANTS, MOMENTS

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


@given(
    st.lists(st.tuples(LONGS, st.binary(max_size=90) | st.none()), min_size=1),
    st.sampled_from([(2, 0), (0, 2), (10, 0)]),
)
def test_joined_pieces_keep_their_order_for_sliced_arrays(
    rows: list[tuple[int, bytes | None]], branches: tuple[int, int]
) -> None:
    """Also where the arrays are slices of others."""
    value, null = branches
    padded = pa.array([b"before", *(text for _, text in rows), b"behind"], pa.binary()).slice(1, len(rows))
    numbers = varints(np.array([number for number, _ in rows], np.int64))
    pieces = [constant(b"<", len(rows)), in_union(lengths(padded), padded, value, null), padded, numbers]
    assert joined(pieces, len(rows)).to_pylist() == [
        b"<" + (bytes((null,)) if text is None else bytes((value,)) + varint(len(text)) + text) + varint(number)
        for number, text in rows
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


# TIMESTAMPs of a whole column in a zone, against one by one.


ZONES = ["UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Monrovia"]


@given(
    st.lists(st.one_of(st.none(), INSTANTS, MOMENTS), max_size=6),
    st.sampled_from(ZONES).map(ZoneInfo),
    st.integers(0, 6),
)
def test_timestamp_column_texts_equal_those_of_each_value(values: list[int | None], zone: ZoneInfo, fsp: int) -> None:
    """Africa/Monrovia was off by 44 minutes and 30 seconds until 1972; changes to summer time are among the others."""
    column_type = ColumnType.of(FieldType(Tp.TIMESTAMP, decimal=fsp))
    found = texts_of(column_type, pa.array(values, pa.uint64()), zone).to_pylist()
    assert found == [None if value is None else timestamp_text(value, fsp, zone).encode() for value in values]


@pytest.mark.parametrize("name", ZONES)
def test_timestamp_column_texts_around_time_zone_change_are_right(name: str) -> None:
    zone, column_type = ZoneInfo(name), ColumnType.of(FieldType(Tp.TIMESTAMP, decimal=6))
    moments = [
        pack(Civil(year, month, day, hour, minute, 59, 999_999))
        for year, month, day in ((1971, 12, 31), (1972, 1, 7), (2026, 3, 8), (2026, 4, 4), (2026, 11, 1))
        for hour in (0, 5, 6, 7, 14, 15, 23)
        for minute in (0, 29, 30, 44, 45, 59)
    ]
    found = texts_of(column_type, pa.array(moments, pa.uint64()), zone).to_pylist()
    assert found == [timestamp_text(moment, 6, zone).encode() for moment in moments]


def test_timestamp_column_with_invalid_bits_is_refused() -> None:
    column_type = ColumnType.of(FieldType(Tp.TIMESTAMP))
    for name in ("UTC", "Asia/Shanghai"):
        with pytest.raises(DecodeError):
            texts_of(column_type, pa.array([(1 << 64) - 1], pa.uint64()), ZoneInfo(name))
