"""Free space of the disk (`P-RPC-06`, `P-ST-13`)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from binlog.errors import NoSpace

RESUME_BYTES = 32 << 20  # a pump whose log broke on a full disk restarts when more than this is free
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def lacks_room(reason: str) -> bool:
    """Return whether an error's text, from the system or from LevelDB, says that the disk is full or a quota is used
    up."""
    return any(text in reason for text in _FULL)


class Space:
    """Refuses writes while the file system of `directory` has at most `stop_bytes` left.

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
