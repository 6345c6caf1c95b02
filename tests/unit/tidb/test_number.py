"""Numbers that compare as their bytes do."""

from __future__ import annotations

import math
import struct

import pytest
from binlog.errors import DecodeError
from binlog.tidb import number
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import refuses_every_cut
from tests.unit.tidb.strategies import finite, int64, uint64


@given(int64, int64)
def test_encoded_ints_sort_as_their_values(left: int, right: int) -> None:
    a, b = number.encode_int(left), number.encode_int(right)
    assert (a < b, a == b) == (left < right, left == right)
    assert number.decode_int(b"?" + a, 1) == (left, 9)


@given(uint64, uint64)
def test_encoded_uints_sort_as_their_values(left: int, right: int) -> None:
    a, b = number.encode_uint(left), number.encode_uint(right)
    assert (a < b, a == b) == (left < right, left == right)
    assert number.decode_uint(a) == (left, 8)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_encoded_floats_sort_as_their_values(left: float, right: float) -> None:
    a, b = number.encode_float(left), number.encode_float(right)
    assert (a < b, a == b) == (left < right, left == right)
    assert number.decode_float(a) == (left, 8)


@given(finite)
def test_float_encoded_with_signed_zero_decodes_to_same_bits(value: float) -> None:
    decoded, _ = number.decode_float(number.encode_float(value, signed_zero=True))
    assert struct.pack(">d", decoded) == struct.pack(">d", value)


def test_encoded_nan_decodes_to_nan() -> None:
    assert math.isnan(number.decode_float(number.encode_float(math.nan))[0])


@pytest.mark.parametrize("decode", [number.decode_int, number.decode_uint, number.decode_float])
def test_truncated_number_raises_decode_error(decode) -> None:  # type: ignore[no-untyped-def]
    refuses_every_cut(decode, bytes(8))
    with pytest.raises(DecodeError, match="insufficient bytes"):
        decode(bytes(10), 3)


def test_encoding_integer_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="unsigned"):
        number.encode_uint(-1)
    with pytest.raises(ValueError, match="signed"):
        number.encode_int(1 << 63)
