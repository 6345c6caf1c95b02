"""Python values into columns: what is taken, what it becomes, and the words of every refusal."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from binlog.tidb.datum import Uint
from binlog.tidb.flatten import to_text
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from pumpclient.sdk import types as t
from pumpclient.sdk.values import encoder

PLUS8 = timezone(timedelta(hours=8))

# (type, Python value, what the MySQL text protocol then shows)
TAKEN: list[tuple[FieldType, object, object]] = [
    (t.TinyInt(), -128, "-128"),
    (t.TinyInt(unsigned=True), 255, "255"),
    (t.SmallInt(), 32_767, "32767"),
    (t.MediumInt(), -8_388_608, "-8388608"),
    (t.MediumInt(unsigned=True), 16_777_215, "16777215"),
    (t.Int(unsigned=True), 4_294_967_295, "4294967295"),
    (t.BigInt(), -(1 << 63), "-9223372036854775808"),
    (t.BigInt(unsigned=True), (1 << 64) - 1, "18446744073709551615"),
    (t.Bool(), True, "1"),
    (t.Year(), 0, "0000"),
    (t.Year(), 2155, "2155"),
    (t.Float(), 1.5, "1.5"),
    (t.Double(), -2.5e10, "-25000000000"),
    (t.Double(), 7, "7"),
    (t.NumericType(10, 2), Decimal("12.3"), "12.30"),
    (t.NumericType(10, 2), "-0.00", "0.00"),
    (t.NumericType(10, 2), 5, "5.00"),
    (t.NumericType(5, 0), Decimal("1E+4"), "10000"),
    (t.NumericType(30, 30), Decimal("0.000000000000000000000000000001"), "0.000000000000000000000000000001"),
    (t.NumericType(65, 30), Decimal("9" * 35 + "." + "9" * 30), "9" * 35 + "." + "9" * 30),
    (t.Bit(12), 0b1010_0000_0001, b"\x0a\x01"),
    (t.Bit(64), (1 << 64) - 1, b"\xff" * 8),
    (t.Bit(5), b"\x15", b"\x15"),
    (t.Date(), date(2020, 2, 29), "2020-02-29"),
    (t.Date(), "0001-01-01", "0001-01-01"),
    (t.Date(), datetime(2020, 1, 2), "2020-01-02"),
    (t.DateTime(6), datetime(9999, 12, 31, 23, 59, 59, 999_999), "9999-12-31 23:59:59.999999"),
    (t.DateTime(), "2020-01-02T03:04:05", "2020-01-02 03:04:05"),
    (t.DateTime(3), date(2020, 1, 2), "2020-01-02 00:00:00.000"),
    (t.Timestamp(3), datetime(2020, 1, 2, 3, 4, 5, 678_000), "2020-01-02 03:04:05.678"),
    (t.Timestamp(), datetime(2020, 1, 2, 8, 0, tzinfo=PLUS8), "2020-01-02 00:00:00"),
    (t.Timestamp(), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "1970-01-01 00:00:01"),
    (t.Time(), timedelta(hours=-838, minutes=-59, seconds=-59), "-838:59:59"),
    (t.Time(3), time(1, 2, 3, 500_000), "01:02:03.500"),
    (t.Time(6), timedelta(microseconds=-1), "-00:00:00.000001"),
    (t.Time(2), "-12:34:56.78", "-12:34:56.78"),
    (t.Char(5), "ab  ", "ab"),
    (t.VarChar(3), "\N{PILE OF POO}é ", "\N{PILE OF POO}é "),
    (t.VarChar(0), "", ""),
    (t.Text(), "x" * 65_535, "x" * 65_535),
    (t.Binary(4), b"ab", b"ab\0\0"),
    (t.VarBinary(4), bytearray(b"\0\xff"), b"\0\xff"),
    (t.Blob(), memoryview(b"xyz"), b"xyz"),
    (t.Enum("new", "paid"), "paid", "paid"),
    (t.Set("a", "b", "c"), "c,a", "a,c"),
    (t.Set("a", "b", "c"), {"b"}, "b"),
    (t.Set("a", "b", "c"), [], ""),
    (t.JSON(), {"k": [1, None, True, "x"]}, '{"k": [1, null, true, "x"]}'),
    (t.JSON(), "text", '"text"'),
    (t.JSON(), 1.5, "1.5"),
]

REFUSED: list[tuple[FieldType, object, str]] = [
    (t.TinyInt(), 128, "out of range -128 to 127"),
    (t.BigInt(unsigned=True), -1, "out of range 0 to"),
    (t.Int(), "5", "expected an int, got str"),
    (t.Int(), 5.0, "expected an int, got float"),
    (t.Year(), 1900, "0, or 1901 to 2155"),
    (t.Year(), True, "expected an int"),
    (t.Float(), math.nan, "NaN and infinity"),
    (t.Float(), 1e39, "out of range of FLOAT"),
    (t.Double(unsigned=True), -1.0, "unsigned"),
    (t.Double(), 10**400, "out of range"),
    (t.NumericType(4, 2), 100, "out of range of DECIMAL(4,2)"),
    (t.NumericType(4, 2), Decimal("1.005"), "more than 2 digits after the point"),
    (t.NumericType(4, 2), 0.1, "a float is not exact"),
    (t.NumericType(4, 2), "one", "not a decimal number"),
    (t.NumericType(4, 2), Decimal("inf"), "NaN and infinity"),
    (t.NumericType(4, 2, unsigned=True), -1, "unsigned"),
    (t.Bit(4), 16, "does not fit 4 bits"),
    (t.Bit(4), "x", "an int or bytes"),
    (t.Date(), datetime(2020, 1, 2, 3), "a datetime with a time of day"),
    (t.Date(), "2020-13-01", "month must be in"),
    (t.DateTime(), datetime(2020, 1, 1, tzinfo=UTC), "no time zone"),
    (t.DateTime(3), datetime(2020, 1, 1, microsecond=1), "do not fit 3 fractional digits"),
    (t.DateTime(), 5, "expected a datetime, got int"),
    (t.Timestamp(), datetime(1970, 1, 1), "out of range 1970-01-01 00:00:01"),
    (t.Timestamp(), datetime(2038, 1, 19, 3, 14, 8), "out of range"),
    (t.Time(), timedelta(hours=839), "838:59:59"),
    (t.Time(), timedelta(microseconds=1), "do not fit 0 fractional digits"),
    (t.Time(), time(1, tzinfo=UTC), "no time zone"),
    (t.Time(), 5, "a timedelta or time"),
    (t.VarChar(3), "abcd", "4 characters are more than 3"),
    (t.VarChar(3), b"abc", "expected a str, got bytes"),
    (t.VarChar(3), "\ud800", "not Unicode text"),
    (t.TinyText(), "é" * 128, "256 bytes are more than 255"),
    (t.VarChar(3, collate="ascii_bin"), "é", "outside ascii"),
    (t.VarChar(3, collate="utf8_bin"), "\N{PILE OF POO}", "outside utf8"),
    (t.VarBinary(3), b"abcd", "4 bytes are more than 3"),
    (t.VarBinary(3), "abc", "expected bytes, got str"),
    (t.Enum("a", "b"), "c", "not one of 'a', 'b'"),
    (t.Enum("a", "b"), 1, "expected a str, the name of a member, got int"),
    (t.Set("a", "b"), "a,c", "'c' is not one of"),
    (t.Set("a", "b"), 3, "expected a str or an iterable of names, got int"),
    (t.JSON(), object(), "object"),
    (t.JSON(), {1: 2}, "not a valid key of a JSON object"),
]


@pytest.mark.parametrize(("kind", "value", "shown"), TAKEN)
def test_encoder_accepts_value_and_returns_its_stored_form(kind: FieldType, value: object, shown: object) -> None:
    assert to_text(encoder(kind)(value), kind) == shown


@pytest.mark.parametrize(("kind", "value", "why"), REFUSED)
def test_encoder_refuses_value_with_reason(kind: FieldType, value: object, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        encoder(kind)(value)
    assert why in str(caught.value)


def test_encoder_returns_uint_for_unsigned_types() -> None:
    """The flag byte of a row depends on it (F-01)."""
    for kind, value in ((t.Int(unsigned=True), 5), (t.Bit(3), 5), (t.Enum("a"), "a"), (t.Set("a"), "a")):
        assert isinstance(encoder(kind)(value), Uint)
    assert not isinstance(encoder(t.Int())(5), Uint)
    assert not isinstance(encoder(t.Year())(2020), Uint)


def test_encoder_refuses_types_that_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="vector cannot be written"):
        encoder(FieldType(Tp.VECTOR))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-99_999, max_value=99_999))
def test_decimals_keep_their_value(value: Decimal) -> None:
    kind = t.NumericType(9, 4)
    shown = to_text(encoder(kind)(value), kind)
    assert isinstance(shown, str)
    assert Decimal(shown) == value
    assert len(shown.partition(".")[2]) == 4


@given(st.datetimes(min_value=datetime(1, 1, 1)))
def test_datetimes_keep_their_value(value: datetime) -> None:
    kind = t.DateTime(6)
    assert to_text(encoder(kind)(value), kind) == value.isoformat(" ", "microseconds")


@given(st.timedeltas(min_value=timedelta(hours=-838), max_value=timedelta(hours=838)))
def test_durations_keep_their_value(value: timedelta) -> None:
    kind = t.Time(6)
    assert encoder(kind)(value) == value // timedelta(microseconds=1) * 1000


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_text_keeps_its_value(value: str) -> None:
    kind = t.VarChar(20)
    assert encoder(kind)(value) == value.encode()
