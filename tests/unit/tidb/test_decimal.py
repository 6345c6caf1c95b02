"""DECIMAL's binary form."""

from __future__ import annotations

import pickle
from decimal import Decimal as PyDecimal

import pytest
from binlog.errors import DecodeError
from binlog.tidb.decimal import (
    Decimal,
    decode_decimal,
    decode_decimal_text,
    encode_decimal,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import refuses_every_cut, survives
from tests.unit.tidb.strategies import decimals


@given(decimals())
def test_encoded_decimal_decodes_to_same_value_precision_and_scale(value: Decimal) -> None:
    data = encode_decimal(value, value.precision, value.frac)
    decoded, end = decode_decimal(b"?" + data + b"?", 1)
    assert (decoded, decoded.precision, decoded.frac) == (value, value.precision, value.frac)
    assert end == 1 + len(data)
    assert decode_decimal_text(data) == (str(value), len(data))


@given(decimals())
def test_truncated_or_damaged_decimal_raises_decode_error_only(value: Decimal) -> None:
    data = encode_decimal(value, value.precision, value.frac)
    refuses_every_cut(decode_decimal, data)
    survives(decode_decimal, data, rounds=20)


@given(decimals(), decimals())
def test_encoded_decimals_of_one_type_sort_as_their_values(left: Decimal, right: Decimal) -> None:
    if left.precision - left.frac < right.precision - right.frac:
        left, right = right, left
    precision, frac = left.precision - left.frac + max(left.frac, right.frac), max(left.frac, right.frac)
    if precision <= 65:
        a, b = encode_decimal(left, precision, frac), encode_decimal(right, precision, frac)
        assert (a < b, a == b) == (PyDecimal(left) < PyDecimal(right), PyDecimal(left) == PyDecimal(right))


@pytest.mark.parametrize(
    ("text", "precision", "frac", "shown"),
    [
        ("5", 10, 2, "5.00"),
        ("-0", 10, 2, "0.00"),
        ("+7.5", 3, 1, "7.5"),
        (".5", 2, 1, "0.5"),
        ("5.", 2, 1, "5.0"),
        ("1.239", 3, 2, "1.23"),
        ("-0.001", 3, 2, "0.00"),
        ("007", 1, 0, "7"),
        ("12.34", 0, 0, "12.34"),
        ("0", 0, 0, "0"),
        ("0.5", 0, 0, "0.5"),
    ],
)
def test_decimal_text_is_normalized_to_precision_and_scale(text: str, precision: int, frac: int, shown: str) -> None:
    assert decode_decimal(encode_decimal(text, precision, frac))[0] == shown


def test_decimal_encoded_without_type_has_precision_of_its_digits() -> None:
    value, _ = decode_decimal(encode_decimal("0012.340"))
    assert (value.precision, value.frac) == (5, 3)
    value, _ = decode_decimal(encode_decimal("0." + "1" * 40))
    assert (value.precision, value.frac) == (30, 30)


@pytest.mark.parametrize("text", ["", "-", ".", "1e5", "1.2.3", "NaN", "٣", "--1", "1 "])
def test_encoding_text_that_is_no_decimal_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a decimal number"):
        encode_decimal(text, 10, 2)


@pytest.mark.parametrize(("text", "precision", "frac"), [("100", 4, 2), ("1", 82, 0), ("1", 2, 3), ("1", 40, 31)])
def test_encoding_decimal_beyond_its_precision_is_refused(text: str, precision: int, frac: int) -> None:
    with pytest.raises(ValueError, match="DECIMAL"):
        encode_decimal(text, precision, frac)


@pytest.mark.parametrize("data", ["0000ff", "520080", "020380", "281f80", "0900fffffffe", "0302ffff"])
def test_decimal_with_invalid_header_or_digit_group_raises_decode_error(data: str) -> None:
    with pytest.raises(DecodeError):
        decode_decimal(bytes.fromhex(data))


def test_decimal_leading_group_accepts_one_digit_more_than_its_precision() -> None:
    """TiDB accepts 99 in the one-byte group of DECIMAL(1,0), and refuses 100."""
    assert decode_decimal(bytes((1, 0, 0x80 + 99)))[0] == "99"
    with pytest.raises(DecodeError, match="bad number"):
        decode_decimal(bytes((1, 0, 0x80 + 100)))


def test_negative_zero_decimal_decodes_to_zero() -> None:
    assert decode_decimal(bytes.fromhex("03027fff"))[0] == "0.00"


def test_pickled_decimal_keeps_value_precision_and_scale() -> None:
    value = pickle.loads(pickle.dumps(Decimal("1.50", 3, 2)))
    assert (value, value.precision, value.frac) == ("1.50", 3, 2)


@given(st.binary(max_size=40))
def test_random_bytes_as_decimal_raise_decode_error_only(data: bytes) -> None:
    survives(decode_decimal, data, rounds=3)
