"""Packed times, durations and their text."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from binlog.errors import DecodeError
from binlog.tidb import time
from binlog.tidb.time import Civil
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tidb_codecs import core_pack
from tests.unit.tidb.strategies import civil, durations, uint64

TOKYO = ZoneInfo("Asia/Tokyo")


@given(civil)
def test_packed_time_unpacks_to_same_time_and_its_text_parses_back(when: Civil) -> None:
    packed = time.pack(when)
    assert time.unpack(packed) == when
    assert time.parse_datetime(time.datetime_text(packed, 6)) == packed
    assert time.date_text(packed) == time.datetime_text(packed)[:10]


@given(civil, civil)
def test_packed_times_sort_as_times(left: Civil, right: Civil) -> None:
    assert (time.pack(left) < time.pack(right)) == (left < right)


@given(civil)
def test_core_time_unpacks_to_same_time_whatever_its_type_bits(when: Civil) -> None:
    assert time.core_unpack(core_pack(when)) == when
    assert time.core_unpack(core_pack(when) | 0xE) == when


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 6))
def test_any_number_as_packed_time_gives_valid_text_or_decode_error(number: int, fsp: int) -> None:
    """Bits that are no time are a DecodeError, never odd text."""
    try:
        text = time.datetime_text(number, fsp)
    except DecodeError:
        with pytest.raises(DecodeError):
            time.datetime_text(number, 6)
    else:
        assert len(text) == 19 + (fsp + 1 if fsp else 0)
        assert number & 0xFFFFFF < 1_000_000 or not fsp


@given(uint64)
def test_any_number_as_core_time_gives_valid_time_or_decode_error(number: int) -> None:
    try:
        when = time.core_unpack(number)
    except DecodeError:
        return
    assert when.hour < 24


@pytest.mark.parametrize(
    "bad",
    [
        Civil(10000, 1, 1),
        Civil(2000, 1, 1, 24),
        Civil(2000, 1, 1, 0, 60),
        Civil(2000, 1, 1, 0, 0, 60),
        Civil(2000, 1, 1, 0, 0, 0, 1_000_000),
    ],
)
def test_packed_time_out_of_range_raises_decode_error(bad: Civil) -> None:
    packed = time.pack(bad)
    with pytest.raises(DecodeError, match="packed time"):
        time.unpack(packed)
    with pytest.raises(DecodeError, match="packed time"):
        time.datetime_text(packed, 6)


def test_time_text_truncates_fraction_to_its_digits() -> None:
    packed = time.pack(Civil(2020, 1, 2, 3, 4, 5, 987_654))
    assert [time.datetime_text(packed, fsp)[19:] for fsp in range(7)] == [
        "", ".9", ".98", ".987", ".9876", ".98765", ".987654"
    ]  # fmt: skip


def test_timestamp_text_is_shown_in_given_time_zone() -> None:
    packed = time.parse_datetime("2020-01-01 20:30:00.5")
    assert time.timestamp_text(packed, 1, TOKYO) == "2020-01-02 05:30:00.5"
    assert time.timestamp_text(packed, 1, timezone(timedelta(hours=-8, minutes=-30))) == "2020-01-01 12:00:00.5"
    assert time.timestamp_text(packed, 1) == "2020-01-01 20:30:00.5"
    assert time.timestamp_text(0, 0, TOKYO) == "0000-00-00 00:00:00"


def test_timestamp_converted_to_zone_and_back_is_unchanged() -> None:
    packed = time.parse_datetime("2024-06-30 23:59:59.123456")
    assert time.from_zone(time.to_zone(packed, TOKYO), TOKYO) == packed
    assert time.to_zone(packed, UTC) == packed


def test_timestamp_that_zone_cannot_convert_is_unchanged() -> None:
    packed = time.parse_datetime("2000-00-00 00:00:00")
    assert time.to_zone(packed, TOKYO) == packed
    assert time.timestamp_text(time.parse_datetime("9999-12-31 23:00:00"), 0, TOKYO) == "9999-12-31 23:00:00"


@given(durations)
def test_duration_text_parses_to_same_duration(ns: int) -> None:
    assert time.parse_duration(time.duration_text(ns, 6)) == ns
    assert time.duration_text(ns, 0) == time.duration_text(ns, 6)[:-7]


def test_duration_beyond_838_59_59_raises_decode_error() -> None:
    assert time.duration_text(-time.DURATION_NS_MAX, 0) == "-838:59:59"
    assert time.duration_text(0, 3) == "00:00:00.000"
    for ns in (time.DURATION_NS_MAX + 1_000_000_000, 1 << 62):
        with pytest.raises(DecodeError, match="838:59:59"):
            time.duration_text(ns)


@pytest.mark.parametrize(
    "text", ["", "1:2", "00:60:00", "00:00:60", "839:00:00", "12:00:00.", "x", "00:00:00.1234567890"]
)
def test_parsing_invalid_duration_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|838"):
        time.parse_duration(text)


@pytest.mark.parametrize("text", ["", "2020", "2020-13-01", "2020-01-32", "2020-01-01 24:00:00", "20-01-01 00:00"])
def test_parsing_invalid_datetime_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a date or time"):
        time.parse_datetime(text)


def test_parsed_datetime_is_truncated_to_fractional_digits() -> None:
    assert time.unpack(time.parse_datetime("2020-01-02 03:04:05.678999", 3)).microsecond == 678_000
    assert time.unpack(time.parse_datetime("2020-01-02T03:04:05.6789991")).microsecond == 678_999
    assert time.parse_datetime("2020-01-02") == time.pack(Civil(2020, 1, 2))
