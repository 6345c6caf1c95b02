"""Text of single values."""

from __future__ import annotations

import struct

import pytest
from binlog.errors import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from drainer.row.fast_path import PackedTimes
from drainer.row.text import enum_index, enum_name, float_text, set_bits


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_text_reads_back_as_the_same_single(value: float) -> None:
    """Servers read the text as a double and round it."""
    assert struct.pack("<f", float(float_text(value))) == struct.pack("<f", value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.10000000149011612, "0.1"),
        (16777216.0, "16777216.0"),
        (3.4028234663852886e38, "3.4028234663852886e+38"),
        (-0.0, "-0.0"),
    ],
)
def test_float_text_is_the_shortest_for_simple_values(value: float, text: str) -> None:
    assert float_text(value) == text


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e39])
def test_float_text_refuses_nan_infinity_and_overflow(value: float) -> None:
    with pytest.raises(DecodeError):
        float_text(value)


def test_enum_error_value_is_0_and_unknown_set_bit_refused() -> None:
    """X-14: an ENUM's error value is 0; a SET's unknown bit is damage (F-01)."""
    assert enum_index(3, 2) == 0
    assert enum_name(0, ("a",)) == ""
    with pytest.raises(DecodeError, match="4"):
        set_bits(4, 2)


def test_packed_times_are_cached_by_bytes_and_refuse_other_lengths() -> None:
    times = PackedTimes()
    assert times[b"\x80" * 8 + b"\x01"] == 1 << 56
    for raw in (b"\x80" * 9, b"\x01", b"\x80" * 7 + b"\x01\x01"):
        with pytest.raises(ValueError, match="9 bytes"):
            times[raw]
