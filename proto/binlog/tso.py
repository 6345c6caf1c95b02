"""Timestamps of TiDB: physical milliseconds << 18 | logical counter."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

LOGICAL_BITS = 18
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1


def compose(physical_ms: int, logical: int = 0) -> int:
    """The TSO of a physical time in ms since the epoch and a logical counter 0..2^18-1."""
    return physical_ms << LOGICAL_BITS | logical


def physical_ms(ts: int) -> int:
    """Milliseconds since the epoch."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """The counter within its millisecond."""
    return ts & LOGICAL_MAX


def approximate(start_ts: int, elapsed_s: float) -> int:
    """A TSO some whole seconds after `start_ts`, as upstream estimates updateTS (R-04); 0 stays 0."""
    return start_ts + (int(elapsed_s) * 1000 << LOGICAL_BITS) if start_ts else 0


def to_datetime(ts: int, zone: tzinfo | None = UTC) -> datetime:
    """The physical part as an aware datetime; `None` means the local zone."""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, zone).astimezone(zone)


def format_local(ts: int) -> str:
    """For people: local date and time with milliseconds."""
    return to_datetime(ts, None).isoformat(sep=" ", timespec="milliseconds")
