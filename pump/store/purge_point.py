"""The distance below the purge point at which binlogs are removed. Pure."""

from __future__ import annotations

from binlog.cluster import tso

SLACK_MS = 600_000  # binlogs are removed when the purge point is this far above them


def removed_until_ts(purged_ts: int) -> int:
    """Return the ts up to which files and keys of binlogs may have been removed; 0 if nothing was purged."""
    return tso.compose(max(0, tso.physical_ms(purged_ts) - SLACK_MS))
