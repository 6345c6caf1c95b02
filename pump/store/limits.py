"""Limits of what a pump accepts: how far a ts may be ahead of the timestamp source; the free space of the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from binlog.cluster.tso import LOGICAL_MAX, boot_clock_s, compose, format_local, physical_ms
from binlog.errors import NoSpace

from pump.errors import TooFarAhead

AHEAD_MAX_S = 600
RESUME_BYTES = 32 << 20  # a pump whose log broke on a full disk restarts when more than this is free
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def lacks_room(reason: str) -> bool:
    """Return whether an error's text, from the system or from LevelDB, says that the disk is full or a quota is used
    up."""
    return any(text in reason for text in _FULL)


class Space:
    """Refuses writes while the file system of `directory` has at most `stop_bytes` left (`P-RPC-06`, `P-ST-13`).

    `refresh` queries the file system; all other methods use the result of the last query.
    """

    def __init__(
        self, directory: Path, *, stop_bytes: int, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    ) -> None:
        self._directory = directory
        self._stop_bytes = stop_bytes
        self._statvfs = statvfs
        self.available_bytes = 0
        self.capacity_bytes = 0

    def refresh(self) -> None:
        """Query the file system. Raises OSError if it does not answer; this ends a start of the pump."""
        found = self._statvfs(self._directory)
        self.available_bytes = found.f_bavail * found.f_frsize
        self.capacity_bytes = found.f_blocks * found.f_frsize

    def check(self) -> None:
        """Raise NoSpace, with upstream's text, if writes are refused."""
        if self.full:
            raise NoSpace(self.available_bytes, self._stop_bytes)

    @property
    def full(self) -> bool:
        return self.available_bytes <= self._stop_bytes

    @property
    def shortage(self) -> str:
        """Why writes are refused, with the limit's setting; empty while they are accepted."""
        if not self.full:
            return ""
        limit = f"storage.stop-write-at-available-space is {self._stop_bytes:,} bytes"
        return f"{limit}, and {self.available_bytes:,} are available"

    @property
    def resumable(self) -> bool:
        """Whether there is room to restart, to read the log again, and to write for a while."""
        return self.available_bytes > max(self._stop_bytes, RESUME_BYTES)

    async def wait_for_room(self, interval_s: float) -> None:
        """Wait until the disk is `resumable`. The file system is queried every `interval_s` seconds."""
        while True:
            await asyncio.sleep(interval_s)
            with suppress(OSError):
                await asyncio.to_thread(self.refresh)
                if self.resumable:
                    return


class Horizon:
    """The limit for the ts of binlogs. Until the first `saw`, every ts is beyond it. `ahead_max_s`: seconds; 0: no
    limit.

    A ts far above the source's is from a writer with its own clock, or from a damaged request. If it were stored,
    drainers could not apply it for years, and timestamps would continue from there (correctness rule 7).

    The check makes no call: the source's last ts plus the time since then is accurate enough to accept a binlog. Before
    a binlog is refused, the source is queried again, because its clock may have been set forward. Elapsed time is
    measured with CLOCK_BOOTTIME, which cannot be set and which runs while the machine is suspended; the wall clock is
    not used."""

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
