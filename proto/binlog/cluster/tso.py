"""Arithmetic of TSOs: 46 bits of milliseconds since the epoch, then 18 bits of a counter.

A variable called `*_ts` is a TSO; one called `*_ms` or `*_s` is a time. They are never mixed.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

LOGICAL_BITS = 18
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1


def compose(physical_ms: int, logical: int = 0) -> int:
    """Return the TSO of a millisecond and a counter. One above LOGICAL_MAX carries into the milliseconds, as in PD."""
    return (physical_ms << LOGICAL_BITS) + logical


def physical_ms(ts: int) -> int:
    """Return a TSO's milliseconds since the epoch."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """Return a TSO's counter within its millisecond."""
    return ts & LOGICAL_MAX


def approximate(start_ts: int, elapsed_s: float) -> int:
    """Return `start_ts` advanced by the whole seconds elapsed (`R-04`). 0 stays 0: no TSO was ever requested."""
    if start_ts == 0:
        return 0
    return start_ts + (int(elapsed_s) * 1000 << LOGICAL_BITS)


_AGO = re.compile(r"-([0-9]+)(s|m|h|d)")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?( ?(Z|[+-]\d{2}:?\d{2}))?)?")


def parse(text: str) -> int:
    """Return the TSO that a person wrote: as a number, as a time (`2026-11-20 10:00`, `2026-11-20T10:00:00+01:00`;
    without a zone in the local one), or as the time since then (`-2h`, with s, m, h or d). Raises ValueError.
    """
    text = text.strip()
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return compose(int((time.time() - int(ago[1]) * _UNIT_S[ago[2]]) * 1000))
    if _TIME.fullmatch(text):
        return of_time(datetime.fromisoformat(text.replace(" +", "+").replace(" -", "-").replace(" Z", "Z")))
    raise ValueError(f"{text!r} is neither a TSO nor a time such as 2026-11-20 10:00, 2026-11-20T10:00:00+01:00 or -2h")


def of_time(moment: datetime) -> int:
    """Return the TSO of a time; one without a zone is local."""
    return compose(int(moment.timestamp() * 1000))


def format_utc(ts: int) -> str:
    """Format a TSO's time as UTC, such as `2026-11-20 09:00:00.000 UTC`."""
    try:
        moment = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"ts {ts}"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{physical_ms(ts) % 1000:03d} UTC"


def format_local(ts: int) -> str:
    """Format a TSO for display as local time and counter, such as `2026-11-21 07:00:52.123 +00:00 #17`."""
    try:
        moment = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"ts {ts}"
    zone = moment.strftime("%z")
    text = moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{physical_ms(ts) % 1000:03d}"
    return f"{text} {zone[:3]}:{zone[3:]} #{logical(ts)}"


def boot_clock_s() -> float:
    """Return the time of a clock that cannot be set and also runs while the machine is suspended, where available."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
