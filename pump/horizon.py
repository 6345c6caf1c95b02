"""How far ahead of the timestamp source a binlog's ts may be. Pure; the clock is an argument.

A ts that the source has given out is below what the source says now. One that is far above came from somewhere else: a
writer with a clock of its own, a damaged request. Once stored it would stay: its place in the order comes in centuries,
and an elected allocator that recovers from this log would go on from there. So such a binlog is refused.

No call is made for it. What the source said last, plus the time since, is near enough to let all others pass; before a
binlog is refused the source is asked again, for its clock may have been set forward meanwhile. The time since is
measured on a clock that nobody sets and that runs while the machine sleeps: this machine's time of day plays no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from binlog.cluster.tso import LOGICAL_MAX, compose, format_local, physical_ms

from pump.errors import TooFarAhead

AHEAD_MAX_S = 600


def boot_clock_s() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Horizon:
    """Knows nothing until the first `saw`; until then every ts is beyond it. `ahead_max_s` 0: no ts is."""

    def __init__(self, ahead_max_s: int = AHEAD_MAX_S, *, boot_s: Callable[[], float] = boot_clock_s) -> None:
        self._ahead_max_s = ahead_max_s
        self._boot_s = boot_s
        self._source_ts = 0
        self._seen_s = 0.0
        self._limit_ts = -1  # of the last look: time only goes on, so that what is below needs no other

    def saw(self, ts: int) -> None:
        """The source gave out `ts` just now."""
        self._source_ts, self._seen_s = ts, self._boot_s()

    @property
    def source_ts(self) -> int:
        """An estimate of the source's current ts; 0 before it has given any."""
        if not self._source_ts:
            return 0
        return self._source_ts + compose(int((self._boot_s() - self._seen_s) * 1000))

    @property
    def limit_ts(self) -> int:
        """The largest ts that is taken."""
        return compose(physical_ms(self.source_ts) + self._ahead_max_s * 1000, LOGICAL_MAX)

    def beyond(self, ts: int) -> bool:
        """Whether `ts` is too far ahead, unless the source says otherwise when it is asked."""
        if ts <= self._limit_ts or not self._ahead_max_s:
            return False
        if self._source_ts:
            self._limit_ts = self.limit_ts
        return ts > self._limit_ts

    def refusal(self, ts: int) -> TooFarAhead:
        """For a ts that is beyond it, right after the source was asked."""
        ahead_s = (physical_ms(ts) - physical_ms(self.source_ts)) // 1000
        return TooFarAhead(
            f"binlog of ts {ts} ({format_local(ts)}) is {ahead_s} s ahead of the timestamp source, which is at "
            f"{self.source_ts} ({format_local(self.source_ts)}); at most {self._ahead_max_s} s are taken "
            f"(ts-ahead-max). Does its writer take timestamps from this cluster?"
        )
