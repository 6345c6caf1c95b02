"""One datum in either form."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import (
    Datum,
    Duration,
    Uint,
    decode_one,
    encode_key,
    encode_value,
)
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tidb_codecs import decode_all
from tests.unit.tidb.damage import refuses_every_cut, survives
from tests.unit.tidb.strategies import datums, int64, uint64


@pytest.mark.parametrize("encode", [encode_value, encode_key])
@given(value=datums)
def test_encoded_datum_decodes_to_same_type_and_value(encode, value: Datum) -> None:  # type: ignore[no-untyped-def]
    data = encode(value)
    decoded, end = decode_one(b"?" + data + b"?", 1)
    assert (type(decoded), decoded, end) == (type(value), value, 1 + len(data))
    assert encode(decoded) == data


@given(datums)
def test_truncated_or_damaged_datum_raises_decode_error_only(value: Datum) -> None:
    for data in (encode_value(value), encode_key(value)):
        refuses_every_cut(decode_one, data)
        survives(decode_one, data, rounds=20)


@given(st.binary(max_size=40))
def test_random_bytes_as_datum_raise_decode_error_only(data: bytes) -> None:
    survives(decode_one, data, rounds=3)


@given(st.lists(datums, max_size=5))
def test_concatenated_datums_decode_in_order(values: list[Datum]) -> None:
    assert decode_all(b"".join(map(encode_key, values))) == values
    assert decode_all(b"?" + b"".join(map(encode_value, values)), 1) == values


@given(st.lists(int64 | st.binary(max_size=12) | uint64.map(Uint), min_size=2, max_size=2))
def test_encoded_keys_of_one_type_sort_as_their_values(pair: list[Datum]) -> None:
    left, right = pair
    if type(left) is type(right) and left is not None and right is not None:
        assert (encode_key(left) < encode_key(right)) == (left < right)  # type: ignore[operator]


@pytest.mark.parametrize("flag", [0x0B, 0x20, 0x80, 0xFA, 0xFF])
def test_unknown_datum_flag_raises_decode_error_with_offset(flag: int) -> None:
    with pytest.raises(DecodeError, match=f"invalid encoded key flag {flag}") as caught:
        decode_one(b"\x00" + bytes((flag,)), 1)
    assert caught.value.offset == 1


def test_datum_of_empty_input_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="invalid encoded key"):
        decode_one(b"", 0)


def test_datum_with_negative_length_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="expected length: -1"):
        decode_one(b"\x02\x01aaaa")


def test_encoding_text_or_integer_beyond_64_bits_as_datum_is_refused() -> None:
    for encode in (encode_value, encode_key):
        with pytest.raises(TypeError, match="str is not a datum"):
            encode("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="64-bit"):
            encode(1 << 63)
        with pytest.raises(ValueError, match="64-bit"):
            encode(Uint(-1))


def test_each_datum_type_is_encoded_with_its_own_flag() -> None:
    """A decimal is text but no bytes, JSON is bytes but no string, a duration an int but no number."""
    kinds: list[Datum] = [Uint(1), Duration(1), Decimal("1", 1, 0), BinaryJSON(b"\x04\x00"), b"\x04\x00", 1, 1.0]
    assert [encode_value(value)[0] for value in kinds] == [9, 7, 6, 10, 2, 8, 5]
    assert [encode_key(value)[0] for value in kinds] == [4, 7, 6, 10, 1, 3, 5]
