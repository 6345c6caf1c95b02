"""Go's variable length integers, and their errors."""

from __future__ import annotations

import math
import struct

import pytest
from binlog.errors import DecodeError
from binlog.tidb import datum
from binlog.tidb.varint import (
    decode_compact_bytes,
    decode_uvarint,
    decode_varint,
    encode_compact_bytes,
    encode_uvarint,
    encode_varint,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import refuses_every_cut, survives
from tests.unit.tidb.strategies import finite, int64, uint64


@given(uint64)
def test_encoded_uvarint_decodes_to_same_value_and_truncation_raises_decode_error(value: int) -> None:
    data = encode_uvarint(value)
    assert decode_uvarint(b"\x80" + data + b"\x80", 1) == (value, 1 + len(data))
    refuses_every_cut(decode_uvarint, data)


@given(int64)
def test_encoded_varint_decodes_to_same_value_and_truncation_raises_decode_error(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(data) == (value, len(data))
    refuses_every_cut(decode_varint, data)


@given(st.binary(max_size=300))
def test_encoded_compact_bytes_decode_to_same_value_and_truncation_raises_decode_error(value: bytes) -> None:
    data = encode_compact_bytes(value)
    assert decode_compact_bytes(data + b"?") == (value, len(data))
    refuses_every_cut(decode_compact_bytes, data)


@pytest.mark.parametrize("data", ["ff" * 9 + "02", "ff" * 10 + "01", "80" * 10 + "00", "80" * 10 + "80"])
def test_uvarint_beyond_64_bits_raises_decode_error(data: str) -> None:
    with pytest.raises(DecodeError, match="value larger than 64 bits"):
        decode_uvarint(bytes.fromhex(data))


@pytest.mark.parametrize("data", ["", "80", "80" * 9, "80" * 10, "ff" * 10])
def test_uvarint_without_last_byte_raises_insufficient_bytes(data: str) -> None:
    """Ten bytes that all say "more" are torn, not too large, as in Go."""
    with pytest.raises(DecodeError, match="insufficient bytes to decode value"):
        decode_uvarint(bytes.fromhex(data))


def test_uvarint_in_longer_encoding_than_needed_is_read() -> None:
    assert decode_uvarint(bytes.fromhex("8000")) == (0, 2)
    assert decode_uvarint(bytes.fromhex("ff80808000")) == (127, 5)


def test_compact_bytes_with_impossible_length_raise_decode_error() -> None:
    with pytest.raises(DecodeError, match="expected length: -1"):
        decode_compact_bytes(b"\x01abc")
    with pytest.raises(DecodeError, match="expected length: 4"):
        decode_compact_bytes(b"\x08abc")


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_encoding_uvarint_outside_unsigned_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        encode_uvarint(value)


@pytest.mark.parametrize("value", [-(1 << 63) - 1, 1 << 63])
def test_encoding_varint_outside_signed_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        encode_varint(value)


@given(st.binary(max_size=20))
def test_random_bytes_as_uvarint_or_compact_bytes_raise_decode_error_only(data: bytes) -> None:
    survives(decode_uvarint, data, rounds=5)
    survives(decode_compact_bytes, data, rounds=5)


# Numbers that compare as their bytes do.


@given(int64, int64)
def test_encoded_ints_sort_as_their_values(left: int, right: int) -> None:
    a, b = datum.encode_int(left), datum.encode_int(right)
    assert (a < b, a == b) == (left < right, left == right)
    assert datum.decode_int(b"?" + a, 1) == (left, 9)


@given(uint64, uint64)
def test_encoded_uints_sort_as_their_values(left: int, right: int) -> None:
    a, b = datum.encode_uint(left), datum.encode_uint(right)
    assert (a < b, a == b) == (left < right, left == right)
    assert datum.decode_uint(a) == (left, 8)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_encoded_floats_sort_as_their_values(left: float, right: float) -> None:
    a, b = datum.encode_float(left), datum.encode_float(right)
    assert (a < b, a == b) == (left < right, left == right)
    assert datum.decode_float(a) == (left, 8)


@given(finite)
def test_float_encoded_with_signed_zero_decodes_to_same_bits(value: float) -> None:
    decoded, _ = datum.decode_float(datum.encode_float(value, signed_zero=True))
    assert struct.pack(">d", decoded) == struct.pack(">d", value)


def test_encoded_nan_decodes_to_nan() -> None:
    assert math.isnan(datum.decode_float(datum.encode_float(math.nan))[0])


@pytest.mark.parametrize("decode", [datum.decode_int, datum.decode_uint, datum.decode_float])
def test_truncated_number_raises_decode_error(decode) -> None:  # type: ignore[no-untyped-def]
    refuses_every_cut(decode, bytes(8))
    with pytest.raises(DecodeError, match="insufficient bytes"):
        decode(bytes(10), 3)


def test_encoding_integer_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="unsigned"):
        datum.encode_uint(-1)
    with pytest.raises(ValueError, match="signed"):
        datum.encode_int(1 << 63)
