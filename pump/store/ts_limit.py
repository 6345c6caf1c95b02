"""Limit on how far a binlog's ts may be ahead of the timestamp source. Pure; the clock is an argument.

A ts that the source allocated is below the source's current ts. A ts far above that was not allocated by the source: it
is from a writer with its own clock, or from a damaged request. If it were stored, drainers could not apply it for
years, and an elected allocator that recovers from this log would continue from there. So such a binlog is refused.

The check makes no call: the source's last ts plus the time since then is accurate enough to accept a binlog. Before a
binlog is refused, the source is queried again, because its clock may have been set forward. Elapsed time is measured
with CLOCK_BOOTTIME, which cannot be set and which runs while the machine is suspended; the wall clock is not used.
"""

from __future__ import annotations

from collections.abc import Callable

from binlog.cluster.tso import LOGICAL_MAX, boot_clock_s, compose, format_local, physical_ms

from pump.errors import TooFarAhead

AHEAD_MAX_S = 600


class Horizon:
    """The limit for the ts of binlogs. Until the first `saw`, every ts is beyond it. `ahead_max_s`: seconds; 0: no
    limit."""

    def __init__(self, ahead_max_s: int = AHEAD_MAX_S, *, boot_s: Callable[[], float] = boot_clock_s) -> None:
        self._ahead_max_s = ahead_max_s
        self._boot_s = boot_s
        self._source_ts = 0
        self._seen_s = 0.0
        self._limit_ts = -1  # the limit at the last check; it only grows, so a ts below it needs no new check

    def saw(self, ts: int) -> None:
        """Record that the source has just returned `ts`."""
        self._source_ts, self._seen_s = ts, self._boot_s()

    @property
    def source_ts(self) -> int:
        """Estimated current ts of the source; 0 before the first `saw`."""
        if not self._source_ts:
            return 0
        return self._source_ts + compose(int((self._boot_s() - self._seen_s) * 1000))

    @property
    def limit_ts(self) -> int:
        """The largest ts that is accepted."""
        return compose(physical_ms(self.source_ts) + self._ahead_max_s * 1000, LOGICAL_MAX)

    def beyond(self, ts: int) -> bool:
        """Return whether `ts` is above the estimated limit. Query the source again before a binlog is refused."""
        if ts <= self._limit_ts or not self._ahead_max_s:
            return False
        if self._source_ts:
            self._limit_ts = self.limit_ts
        return ts > self._limit_ts

    def refusal(self, ts: int) -> TooFarAhead:
        """Return the error for a ts that is still beyond the limit after the source was queried again."""
        ahead_s = (physical_ms(ts) - physical_ms(self.source_ts)) // 1000
        return TooFarAhead(
            f"binlog of ts {ts} ({format_local(ts)}) is {ahead_s} s ahead of the timestamp source, which is at "
            f"{self.source_ts} ({format_local(self.source_ts)}); at most {self._ahead_max_s} s are accepted "
            f"(ts-ahead-max). Does its writer take timestamps from this cluster?"
        )
