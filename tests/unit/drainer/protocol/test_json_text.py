"""Columns as JSON: escapes, binary strings and digits."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.types import FieldType, Tp
from hypothesis import example, given
from hypothesis import strategies as st

from drainer.protocol.json_text import (
    base64,
    escaped,
    json_double,
    json_string,
    json_strings,
    latin1_text,
    plain_double,
    short_double,
    utf8_text,
)
from drainer.row.column_type import ColumnType

SINGLE, DOUBLE = ColumnType.of(FieldType(Tp.FLOAT)), ColumnType.of(FieldType(Tp.DOUBLE))
finite = st.floats(allow_nan=False, allow_infinity=False)
singles = st.floats(allow_nan=False, allow_infinity=False, width=32)


def float32(value: float) -> bytes:
    return struct.pack("<f", value)


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=6))
@example(["\u2028", None, "plain", "ü"])
@example(["‐", "a"])
@example(["\x7f", ""])
def test_text_column_is_escaped_as_each_value_alone(values: list[str | None]) -> None:
    encoded = [None if value is None else value.encode() for value in values]
    expected = [None if value is None else json_string(value)[1:-1].encode() for value in values]
    assert utf8_text(pa.array(encoded, pa.binary())).to_pylist() == expected
    assert escaped(pa.array(values, pa.string())).to_pylist() == expected
    assert utf8_text(pa.array([b'"', *encoded], pa.binary()).slice(1)).to_pylist() == expected


def test_text_column_with_invalid_utf8_is_refused() -> None:
    with pytest.raises(DecodeError, match="not UTF-8"):
        utf8_text(pa.array([b"a", b"\xff"], pa.binary()))


@given(st.lists(st.none() | st.binary(max_size=8), max_size=5))
def test_latin1_text_of_bytes_reads_back_equal(values: list[bytes | None]) -> None:
    found = latin1_text(pa.array(values, pa.binary())).to_pylist()
    read = [None if text is None else json.loads(b'"' + text + b'"').encode("iso-8859-1") for text in found]
    assert read == values


def latin1(value: bytes) -> bytes:
    return json_string(value.decode("iso-8859-1"))[1:-1].encode()


@pytest.mark.parametrize(("written", "alone"), [(base64, b64encode), (latin1_text, latin1)])
@given(values=st.lists(st.none() | st.binary(max_size=9), max_size=7))
@example(values=[])
@example(values=[None])
@example(values=[b"", b"", None, b""])
@example(values=[bytes(range(256)), b'<>&"\\', None, b"\x00", b"a"])
@example(values=[b"x" * 2000, None, b"", b"yz"])
def test_binary_column_text_equals_that_of_each_value(
    written: Callable[[Any], Any], alone: Callable[[bytes], bytes], values: Sequence[bytes | None]
) -> None:
    expected = [None if value is None else alone(value) for value in values]
    assert written(pa.array(values, pa.binary())).to_pylist() == expected
    column = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    assert written(column).to_pylist() == expected
    masked = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *pa.array([b"ab", b"c"]).buffers()[1:]])
    assert written(masked).to_pylist() == [None, alone(b"c")]  # NULL, although there are bytes below it


@pytest.mark.parametrize("texts", [[], [""], ["\ufdd0"], ["a\ufdd0", 'b"'], ["<", "", "\ufdd0\ufdd0"]])
def test_json_strings_of_column_equal_those_of_each_value(texts: list[str]) -> None:
    assert json_strings(texts) == [json_string(text)[1:-1] for text in texts]


@given(st.lists(finite | st.none(), min_size=1, max_size=5))
@example([5e-324, 1.7976931348623157e308, -0.0, 1e21, 1e-7, 1e-6, 123456789012345680.0])
def test_json_digits_of_doubles_read_back_equal(values: list[float | None]) -> None:
    array = pa.array(values, pa.float64())
    plain, short = plain_double(DOUBLE)(array).to_pylist(), short_double(DOUBLE)(array).to_pylist()
    for value, digits, brief in zip(values, plain, short, strict=True):
        if value is None:
            assert digits is None and brief is None
        else:
            assert b"e" not in digits and repr(float(digits)) == repr(value)
            assert brief.decode() == json_double(value)


@given(st.lists(singles, min_size=1, max_size=5))
@example([3.4028234663852886e38, 1e-45, 0.1, 16777216.0, 12345.123046875])
def test_json_digits_of_singles_are_the_shortest(values: list[float]) -> None:
    """The digits are strconv's, whatever stands beside a value."""
    array = pa.array(values, pa.float64())
    for made in (plain_double(SINGLE), short_double(SINGLE)):
        for value, digits in zip(values, made(array).to_pylist(), strict=True):
            assert float32(float(digits)) == float32(value)
            assert len(_significant(digits.decode())) <= 9
            assert _significant(digits.decode()) == _significant(str(np.float32(value)))


def _significant(digits: str) -> str:
    return digits.partition("e")[0].lstrip("-0.").replace(".", "").strip("0")


@pytest.mark.parametrize(
    ("value", "plain", "short"),
    [
        (3.4028234663852886e38, b"340282350000000000000000000000000000000", b"3.4028235e+38"),
        (1.401298464324817e-45, b"0." + b"0" * 44 + b"1", b"1e-45"),
        (9.99994610111476e-41, b"0." + b"0" * 39 + b"1", b"1e-40"),
        (0.10000000149011612, b"0.1", b"0.1"),
        (9.999999974752427e-07, b"0.000001", b"0.000001"),
        (16777216.0, b"16777216", b"16777216"),
    ],
)
def test_json_digits_of_extreme_singles_are_exact(value: float, plain: bytes, short: bytes) -> None:
    for array in (pa.array([value]), pa.array([value, 1e30])):
        assert plain_double(SINGLE)(array)[0].as_py() == plain
        assert short_double(SINGLE)(array)[0].as_py() == short


@pytest.mark.parametrize(
    ("value", "plain", "short"),
    [
        (0.0, b"0", b"0"),
        (-0.0, b"-0", b"-0"),
        (1.0, b"1", b"1"),
        (100.5, b"100.5", b"100.5"),
        (1e-6, b"0.000001", b"0.000001"),
        (1.5e-7, b"0.00000015", b"1.5e-7"),
        (1e20, b"100000000000000000000", b"100000000000000000000"),
        (-1e21, b"-1000000000000000000000", b"-1e+21"),
        (2.5e30, b"2500000000000000000000000000000", b"2.5e+30"),
    ],
)
def test_json_digits_of_doubles_with_and_without_exponent_are_exact(value: float, plain: bytes, short: bytes) -> None:
    """Alone, and beside a value that Arrow writes with an exponent."""
    for array in (pa.array([value]), pa.array([value, 1e300])):
        assert plain_double(DOUBLE)(array)[0].as_py() == plain
        assert short_double(DOUBLE)(array)[0].as_py() == short


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("column_type", [SINGLE, DOUBLE])
def test_nan_and_infinity_are_refused_in_json(value: float, column_type: ColumnType) -> None:
    with pytest.raises(DecodeError):
        plain_double(column_type)(pa.array([1.0, value]))


def test_double_beyond_4_bytes_is_refused_for_float_column() -> None:
    with pytest.raises(DecodeError, match="4 bytes"):
        plain_double(SINGLE)(pa.array([1e300]))
