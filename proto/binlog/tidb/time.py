"""Dates, times of day and durations: TiDB's packed integers, to and from text.

`packed` is the uint of a DATE, DATETIME or TIMESTAMP column in a row:
bits 0 | 17 year*13+month | 5 day | 5 hour | 6 minute | 6 second | 24 microseconds; zero is 0000-00-00 00:00:00.
`core` is the other layout, inside binary JSON: 14 year | 4 month | 5 day | 5 hour | 6 minute | 6 second |
20 microseconds | 4 unused. A *duration* is a signed number of nanoseconds. fsp: fractional digits of a second.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

from binlog.errors import DecodeError

DURATION_NS_MAX = (838 * 3600 + 59 * 60 + 59) * 1_000_000_000
_SECOND_NS = 1_000_000_000
_TWO = tuple(f"{n:02d}" for n in range(100))
_DATETIME = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6})\d*)?)?", re.ASCII
)
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?", re.ASCII)


class Civil(NamedTuple):
    """A date and time of day without zone. Month and day may be zero."""

    year: int = 0
    month: int = 0
    day: int = 0
    hour: int = 0
    minute: int = 0
    second: int = 0
    microsecond: int = 0


def is_date(text: str) -> bool:
    """Return whether `YYYY-MM-DD` is a day of the calendar: 0000-00-00, 2024-05-00 and 2024-02-31 are not."""
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def pack(when: Civil) -> int:
    ymd = (when.year * 13 + when.month) << 5 | when.day
    hms = when.hour << 12 | when.minute << 6 | when.second
    return (ymd << 17 | hms) << 24 | when.microsecond


def unpack(packed: int) -> Civil:
    """Unpack a packed time. Raises DecodeError if the bits are not a date and time."""
    hms = packed >> 24
    ymd = hms >> 17
    ym = ymd >> 5
    year, month = divmod(ym, 13)
    hour, minute, second = hms >> 12 & 31, hms >> 6 & 63, hms & 63
    microsecond = packed & 0xFFFFFF
    if year > 9999 or hour > 23 or minute > 59 or second > 59 or microsecond > 999_999 or packed < 0:
        raise DecodeError("packed time", offset=0, detail=f"{packed:#x} is not a date and time")
    return Civil(year, month, ymd & 31, hour, minute, second, microsecond)


@lru_cache(maxsize=65_536)
def _date_of(ymd: int) -> str:
    ym = ymd >> 5
    return f"{ym // 13:04d}-{ym % 13:02d}-{ymd & 31:02d}"


def date_text(packed: int) -> str:
    """Format a packed time as `YYYY-MM-DD`. Raises DecodeError if the year has five digits."""
    ymd = packed >> 41
    if not 0 <= ymd < 4_160_000:  # 10000 * 13 << 5
        raise DecodeError("packed time", offset=0, detail=f"{packed:#x} is not a date")
    return _date_of(ymd)


def datetime_text(packed: int, fsp: int = 0) -> str:
    """Format a packed time as `YYYY-MM-DD HH:MM:SS[.f…]`, the fraction truncated to fsp digits. Raises DecodeError."""
    bits = packed >> 24
    hour, minute, second = bits >> 12 & 31, bits >> 6 & 63, bits & 63
    ymd = bits >> 17
    if not 0 <= ymd < 4_160_000 or hour > 23 or minute > 59 or second > 59:
        raise DecodeError("packed time", offset=0, detail=f"{packed:#x} is not a date and time")
    text = f"{_date_of(ymd)} {_TWO[hour]}:{_TWO[minute]}:{_TWO[second]}"
    if not fsp:
        return text
    microsecond = packed & 0xFFFFFF
    if microsecond > 999_999:
        raise DecodeError("packed time", offset=0, detail=f"{packed:#x} has {microsecond} microseconds")
    return f"{text}.{f'{microsecond:06d}'[:fsp]}"


def timestamp_text(packed: int, fsp: int = 0, zone: tzinfo | None = None) -> str:
    """Format a TIMESTAMP, which is stored in UTC, in `zone` (None: UTC). Zero stays zero."""
    if packed and zone is not None:
        packed = to_zone(packed, zone)
    return datetime_text(packed, fsp)


def to_zone(packed: int, zone: tzinfo) -> int:
    """Convert a packed time from UTC to `zone`. A value that is not a real instant (a zero month) stays as it is."""
    return _shift(packed, UTC, zone)


def from_zone(packed: int, zone: tzinfo) -> int:
    """Convert a packed time from `zone` to UTC."""
    return _shift(packed, zone, UTC)


def _shift(packed: int, source: tzinfo, target: tzinfo) -> int:
    if source is target:
        return packed
    when = unpack(packed)
    try:
        moved = datetime(*when, tzinfo=source).astimezone(target)
    except (ValueError, OverflowError):
        return packed
    return pack(Civil(moved.year, moved.month, moved.day, moved.hour, moved.minute, moved.second, moved.microsecond))


def parse_datetime(text: str, fsp: int = 6) -> int:
    """Parse `YYYY-MM-DD[ HH:MM:SS[.ffffff]]` to a packed time. Digits beyond fsp are dropped. Raises ValueError."""
    found = _DATETIME.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a date or time")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is not a date or time")
    fraction = (found[7] or "")[:fsp].ljust(6, "0")
    return pack(Civil(year, month, day, hour, minute, second, int(fraction)))


def duration_text(ns: int, fsp: int = 0) -> str:
    """Format a duration as `[-]HH:MM:SS[.f…]`, hours with two or three digits. Raises DecodeError beyond ±838:59:59."""
    sign = ""
    if ns < 0:
        ns, sign = -ns, "-"
    seconds, rest = divmod(ns, _SECOND_NS)
    if seconds > 3_020_399:
        raise DecodeError("duration", offset=0, detail=f"{ns} ns is beyond 838:59:59")
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{sign}{hour:02d}:{_TWO[minute]}:{_TWO[second]}"
    return f"{text}.{f'{rest // 1000:06d}'[:fsp]}" if fsp else text


def parse_duration(text: str) -> int:
    """Parse `[-]HH:MM:SS[.f…]` to nanoseconds. Raises ValueError for other texts and beyond ±838:59:59."""
    found = _DURATION.fullmatch(text)
    if not found or found[3] > "59" or found[4] > "59":
        raise ValueError(f"{text!r} is not a duration")
    ns = (int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])) * _SECOND_NS
    if ns > DURATION_NS_MAX:
        raise ValueError(f"{text!r} is beyond 838:59:59")
    ns += int((found[5] or "").ljust(9, "0"))
    return -ns if found[1] else ns


def core_unpack(core: int) -> Civil:
    """Unpack a time from the layout inside JSON, whose low four bits are ignored. Raises DecodeError."""
    microsecond = core >> 4 & 0xFFFFF
    second, minute, hour = core >> 24 & 63, core >> 30 & 63, core >> 36 & 31
    year, month = core >> 50, core >> 46 & 15
    if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59 or microsecond > 999_999:
        raise DecodeError("time in JSON", offset=0, detail=f"{core:#x} is not a date and time")
    return Civil(year, month, core >> 41 & 31, hour, minute, second, microsecond)
