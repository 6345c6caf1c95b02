"""Arithmetic of TSOs: 46 bits of milliseconds since the epoch, then 18 bits of a counter.

A variable called `*_ts` is a TSO; one called `*_ms` or `*_s` is a time. They are never mixed.
"""

from __future__ import annotations

from datetime import UTC, datetime

LOGICAL_BITS = 18
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1


def compose(physical_ms: int, logical: int = 0) -> int:
    """Return the TSO of a millisecond and a counter. A counter above LOGICAL_MAX carries into the milliseconds, as in
    PD.
    """
    return (physical_ms << LOGICAL_BITS) + logical


def physical_ms(ts: int) -> int:
    """Return a TSO's milliseconds since the epoch."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """Return a TSO's counter within its millisecond."""
    return ts & LOGICAL_MAX


def approximate(start_ts: int, elapsed_s: float) -> int:
    """Return `start_ts` advanced by the whole seconds elapsed (`R-04`). 0 stays 0; it means that no TSO was ever
    requested.
    """
    if start_ts == 0:
        return 0
    return start_ts + (int(elapsed_s) * 1000 << LOGICAL_BITS)


def format_local(ts: int) -> str:
    """Format a TSO for display as local time and counter, such as `2026-11-21 07:00:52.123 +00:00 #17`."""
    try:
        moment = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"ts {ts}"
    zone = moment.strftime("%z")
    text = moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{physical_ms(ts) % 1000:03d}"
    return f"{text} {zone[:3]}:{zone[3:]} #{logical(ts)}"
