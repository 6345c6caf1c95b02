"""A TIMESTAMP's text from the zone in which a file has it to UTC. Pure."""

from __future__ import annotations

from datetime import tzinfo

from binlog.tidb.time import datetime_text, from_zone, parse_datetime

from drainer.protocol.errors import MessageError


def to_utc(text: bytes, zone: tzinfo) -> bytes:
    """Convert a time to UTC, with the same number of fractional digits. Raises MessageError if it is not a time."""
    try:
        shown = text.decode()
        packed = parse_datetime(shown)
    except ValueError as error:
        raise MessageError(f"{text!r:.60} is no TIMESTAMP") from error
    digits = len(shown.partition(".")[2])
    return datetime_text(from_zone(packed, zone) if packed else 0, digits).encode()
