"""How much room the disk has (`P-RPC-06`, `P-ST-13`)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from binlog.errors import NoSpace

RESUME_BYTES = 32 << 20  # of room, and a pump that a full disk stopped starts again
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def lacks_room(reason: str) -> bool:
    """Whether an error's text, of the system or of LevelDB, says that the disk is full or a quota used up."""
    return any(text in reason for text in _FULL)


class Space:
    """Refuses writes while the file system of `directory` has no more than `stop_bytes` left.

    `refresh` asks the file system; everything else answers from what it saw last.
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
        """OSError if the file system does not answer; at start that stops the pump."""
        found = self._statvfs(self._directory)
        self.available_bytes = found.f_bavail * found.f_frsize
        self.capacity_bytes = found.f_blocks * found.f_frsize

    def check(self) -> None:
        """NoSpace, in upstream's words."""
        if self.full:
            raise NoSpace(self.available_bytes, self._stop_bytes)

    @property
    def full(self) -> bool:
        return self.available_bytes <= self._stop_bytes

    @property
    def resumable(self) -> bool:
        """Whether there is room to read the log again and to write for a while."""
        return self.available_bytes > max(self._stop_bytes, RESUME_BYTES)

    async def wait_for_room(self, interval_s: float) -> None:
        """Until the file system, asked every so many seconds from now on, says that this is `resumable`."""
        while True:
            await asyncio.sleep(interval_s)
            with suppress(OSError):
                await asyncio.to_thread(self.refresh)
                if self.resumable:
                    return
