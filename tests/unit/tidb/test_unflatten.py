"""What a datum shows as in its column, and what Python values become."""

from __future__ import annotations

import datetime
import decimal
import math
import struct

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.flatten import double_text, flatten, float_text, to_float32, to_text
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tidb_codecs import to_python
from tests.unit.tidb.strategies import datums, decimals, finite

UNSIGNED = int(Flag.UNSIGNED)
UINT64_MAX = (1 << 64) - 1
ENUM = FieldType(Tp.ENUM, 0, 1, 0, "utf8mb4", "utf8mb4_general_ci", ("x", "Y"))
SET = FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("a", "b", "c"))
TEXT = FieldType(Tp.BLOB, 0, 65535, 0, "utf8mb4", "utf8mb4_bin")

# (type, Python value in, datum, text out, Python value out)
CASES = [
    (FieldType(Tp.TINY), -3, -3, "-3", -3),
    (FieldType(Tp.LONGLONG, UNSIGNED), str(UINT64_MAX), Uint(UINT64_MAX), str(UINT64_MAX), UINT64_MAX),
    (FieldType(Tp.YEAR, UNSIGNED), 2024, 2024, "2024", 2024),
    (FieldType(Tp.YEAR, UNSIGNED), 0, 0, "0000", 0),
    (FieldType(Tp.LONG), "2.5", 3, "3", 3),
    (FieldType(Tp.DOUBLE), "1.25", 1.25, "1.25", 1.25),
    (FieldType(Tp.FLOAT), 1.1, 1.100000023841858, "1.1", 1.100000023841858),
    (FieldType(Tp.NEWDECIMAL, 0, 10, 2), "5", "5.00", "5.00", "5.00"),
    (FieldType(Tp.NEWDECIMAL, 0, 10, 2), "-1.005", "-1.01", "-1.01", "-1.01"),
    (FieldType(Tp.NEWDECIMAL, 0, 10, 2), decimal.Decimal("1E+3"), "1000.00", "1000.00", "1000.00"),
    (TEXT, "é", "é".encode(), "é", "é"),
    (TEXT, b"\xff", b"\xff", "\udcff", "\udcff"),
    (FieldType(Tp.BLOB), b"\x00\xff", b"\x00\xff", b"\x00\xff", b"\x00\xff"),
    (FieldType(Tp.STRING, 0, 3), b"a", b"a\x00\x00", b"a\x00\x00", b"a\x00\x00"),
    (FieldType(Tp.DATE), "2021-12-31 12:00:00", None, "2021-12-31", "2021-12-31"),
    (FieldType(Tp.DATE), datetime.date(2021, 12, 31), None, "2021-12-31", "2021-12-31"),
    (FieldType(Tp.DATE), "2021-12-31 23:59:59.5", None, "2022-01-01", "2022-01-01"),
    (FieldType(Tp.DATETIME, 0, 26, 6), "2021-12-31 23:59:59.123456", None, *["2021-12-31 23:59:59.123456"] * 2),
    (FieldType(Tp.DATETIME, 0, 19, 0), "2021-12-31 23:59:59.5", None, *["2022-01-01 00:00:00"] * 2),
    (FieldType(Tp.DATETIME, 0, 19, 0), "2000-00-00 23:59:59.9", None, *["2000-00-00 23:59:59"] * 2),
    (FieldType(Tp.DATETIME, 0, 23, 3), datetime.datetime(2020, 1, 2, 3, 4, 5, 6500), None,
     *["2020-01-02 03:04:05.007"] * 2),
    (FieldType(Tp.TIMESTAMP, 0, 19, 0), "0000-00-00 00:00:00", Uint(0), *["0000-00-00 00:00:00"] * 2),
    (FieldType(Tp.DURATION, 0, 14, 3), "-01:01:01.5", -3661_500_000_000, "-01:01:01.500", "-01:01:01.500"),
    (FieldType(Tp.DURATION, 0, 10, 0), datetime.timedelta(hours=-1, microseconds=-600_000), -3601 * 10**9,
     *["-01:00:01"] * 2),
    (ENUM, "y", Uint(2), "Y", "Y"),
    (ENUM, 0, Uint(0), "", ""),
    (SET, "a,c", Uint(5), "a,c", "a,c"),
    (SET, "", Uint(0), "", ""),
    (FieldType(Tp.BIT, 0, 9), 257, Uint(257), b"\x01\x01", 257),
    (FieldType(Tp.BIT, 0, 9), b"\x01\x01", Uint(257), b"\x01\x01", 257),
    (FieldType(Tp.BIT, 0, 64), (1 << 64) - 1, Uint((1 << 64) - 1), b"\xff" * 8, (1 << 64) - 1),
    (FieldType(Tp.JSON), '{"b": 1, "a": [1.5, null]}', None, *['{"a": [1.5, null], "b": 1}'] * 2),
    (FieldType(Tp.JSON), ["x"], None, '["x"]', '["x"]'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "datum", "text", "python"), CASES)
def test_flattened_value_has_expected_datum_text_and_python_value(
    kind: FieldType, value: object, datum: Datum, text: object, python: object
) -> None:
    flat = flatten(value, kind)
    if datum is not None:
        assert flat == datum
        assert isinstance(flat, Uint) == isinstance(datum, Uint)
    assert to_text(flat, kind) == text
    assert to_python(flat, kind) == python
    assert flatten(python, kind) == flat


@pytest.mark.parametrize("kind", [case[0] for case in CASES])
def test_null_is_null_in_column_of_every_type(kind: FieldType) -> None:
    assert flatten(None, kind) is None
    assert to_text(None, kind) is None
    assert to_python(None, kind) is None


@given(datums.filter(lambda value: value is not None), st.sampled_from(Tp))
def test_datum_in_column_of_another_type_gives_value_or_decode_error(value: Datum, tp: Tp) -> None:
    """Text or a DecodeError that names the column's type; never anything else."""
    kind = FieldType(tp, 0, 8, 3, "utf8mb4", "utf8mb4_bin", ("a", "b"))
    for show in (to_text, to_python):
        try:
            shown = show(value, kind)
        except DecodeError:
            continue
        assert shown is not None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (FieldType(Tp.TINY), 128),
        (FieldType(Tp.TINY, UNSIGNED), -1),
        (FieldType(Tp.LONG), "abc"),
        (FieldType(Tp.LONG), math.inf),
        (FieldType(Tp.LONG), b"1"),
        (FieldType(Tp.YEAR), 1900),
        (FieldType(Tp.DOUBLE), "x"),
        (FieldType(Tp.DOUBLE), math.nan),
        (FieldType(Tp.DOUBLE), b"1"),
        (FieldType(Tp.NEWDECIMAL, 0, 4, 2), "100"),
        (FieldType(Tp.NEWDECIMAL, 0, 4, 2), "NaN"),
        (FieldType(Tp.NEWDECIMAL, 0, 4, 2), 1.5),
        (TEXT, 1),
        (FieldType(Tp.DATETIME), 5),
        (FieldType(Tp.DURATION), 5),
        (FieldType(Tp.DURATION), datetime.timedelta(hours=839)),
        (ENUM, "z"),
        (ENUM, 3),
        (SET, "a,z"),
        (SET, 8),
        (FieldType(Tp.BIT, 0, 3), 8),
        (FieldType(Tp.BIT, 0, 3), "1"),
        (FieldType(Tp.VECTOR), 1),
    ],
)
def test_flatten_refuses_value_that_does_not_fit_column(kind: FieldType, value: object) -> None:
    with pytest.raises(ValueError, match="column"):
        flatten(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "complaint"),
    [
        (Uint(8), SET, "invalid number 8 for Set"),
        (Uint(512), FieldType(Tp.BIT, 0, 8), "does not fit BIT"),
        (1e39, FieldType(Tp.FLOAT), "too large"),
        (math.nan, FieldType(Tp.DOUBLE), "not a number"),
        (math.inf, FieldType(Tp.FLOAT), "not a number"),
        (1, FieldType(Tp.VECTOR), "vector column"),
    ],
)
def test_to_text_of_impossible_datum_raises_decode_error(value: Datum, kind: FieldType, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        to_text(value, kind)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "-0"), (1e15, "1e15"), (999999999999999.0, "999999999999999"), (1e-15, "0.000000000000001"),
     (1.5e-16, "1.5e-16"), (-1.7976931348623157e308, "-1.7976931348623157e308"), (0.1, "0.1"),
     (9.007199254740992e15, "9.007199254740992e15")],
)  # fmt: skip
def test_double_text_is_as_tidb_shows_it(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.4028234663852886e38, "3.4028235e38"), (16777216.0, "16777216"), (123456792.0, "123456790"), (1e-45, "1e-45"),
     (1.17549435e-38, "1.1754944e-38"), (1e20, "1e20"), (6.2831855, "6.2831855"), (0.1, "0.1"), (-1.5, "-1.5")],
)  # fmt: skip
def test_float_text_is_as_tidb_shows_it(value: float, text: str) -> None:
    assert float_text(value) == text


@given(finite)
def test_double_text_parses_to_same_double(value: float) -> None:
    assert float(double_text(value)) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_text_parses_to_same_single_precision_float(value: float) -> None:
    assert struct.pack("<f", to_float32(float(float_text(value)))) == struct.pack("<f", value)


@given(decimals())
def test_decimal_flattened_from_its_text_is_shown_as_that_text(value) -> None:  # type: ignore[no-untyped-def]
    kind = FieldType(Tp.NEWDECIMAL, 0, value.precision, value.frac)
    flat = flatten(str(value), kind)
    assert flat == value
    assert to_text(flat, kind) == value
