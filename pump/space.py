"""How much room the disk has (`P-RPC-06`, `P-ST-13`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from binlog.errors import NoSpace


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
