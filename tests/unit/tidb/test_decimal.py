"""DECIMAL's binary form."""

from __future__ import annotations

import pickle
from decimal import Decimal as PyDecimal

import pytest
from binlog.errors import DecodeError
from binlog.tidb.decimal import (
    Decimal,
    decimal_size,
    decode_decimal,
    decode_decimal_text,
    encode_decimal,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import refuses_every_cut, survives
from tests.unit.tidb.strategies import decimals


@given(decimals())
def test_round_trip(value: Decimal) -> None:
    data = encode_decimal(value, value.precision, value.frac)
    decoded, end = decode_decimal(b"?" + data + b"?", 1)
    assert (decoded, decoded.precision, decoded.frac) == (value, value.precision, value.frac)
    assert end == 1 + len(data) == 1 + 2 + decimal_size(value.precision, value.frac)
    assert decode_decimal_text(data) == (str(value), len(data))


@given(decimals())
def test_damaged(value: Decimal) -> None:
    data = encode_decimal(value, value.precision, value.frac)
    refuses_every_cut(decode_decimal, data)
    survives(decode_decimal, data, rounds=20)


@given(decimals(), decimals())
def test_one_type_compares_as_bytes(left: Decimal, right: Decimal) -> None:
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
def test_text_forms(text: str, precision: int, frac: int, shown: str) -> None:
    assert decode_decimal(encode_decimal(text, precision, frac))[0] == shown


def test_own_precision_is_that_of_its_digits() -> None:
    value, _ = decode_decimal(encode_decimal("0012.340"))
    assert (value.precision, value.frac) == (5, 3)
    value, _ = decode_decimal(encode_decimal("0." + "1" * 40))
    assert (value.precision, value.frac) == (30, 30)


@pytest.mark.parametrize("text", ["", "-", ".", "1e5", "1.2.3", "NaN", "٣", "--1", "1 "])
def test_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a decimal number"):
        encode_decimal(text, 10, 2)


@pytest.mark.parametrize(("text", "precision", "frac"), [("100", 4, 2), ("1", 82, 0), ("1", 2, 3), ("1", 40, 31)])
def test_does_not_fit(text: str, precision: int, frac: int) -> None:
    with pytest.raises(ValueError, match="DECIMAL"):
        encode_decimal(text, precision, frac)


@pytest.mark.parametrize("data", ["0000ff", "520080", "020380", "281f80", "0900fffffffe", "0302ffff"])
def test_bad_headers_and_groups(data: str) -> None:
    with pytest.raises(DecodeError):
        decode_decimal(bytes.fromhex(data))


def test_leading_group_may_hold_a_digit_more() -> None:
    """TiDB accepts 99 in the one-byte group of DECIMAL(1,0), and refuses 100."""
    assert decode_decimal(bytes((1, 0, 0x80 + 99)))[0] == "99"
    with pytest.raises(DecodeError, match="bad number"):
        decode_decimal(bytes((1, 0, 0x80 + 100)))


def test_negative_zero_is_zero() -> None:
    assert decode_decimal(bytes.fromhex("03027fff"))[0] == "0.00"


def test_pickles() -> None:
    value = pickle.loads(pickle.dumps(Decimal("1.50", 3, 2)))
    assert (value, value.precision, value.frac) == ("1.50", 3, 2)


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    survives(decode_decimal, data, rounds=3)
