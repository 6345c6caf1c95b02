"""How far behind the purge point binlogs are removed. Pure."""

from __future__ import annotations

from binlog.cluster import tso

SLACK_MS = 600_000  # removed this much later than the purge point says


def removed_until_ts(purged_ts: int) -> int:
    """Files and keys of binlogs up to here may be gone; 0 where nothing was purged."""
    return tso.compose(max(0, tso.physical_ms(purged_ts) - SLACK_MS))
