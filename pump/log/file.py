"""One file of the value log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

COPY_BYTES = 4 << 20  # a file is compared or copied in pieces of this size


@dataclass(slots=True)
class LogFile:
    """One file. `size`: the offset at which its records end. `closed`: nothing more is written to it. `finished`: a
    footer follows the records.

    The file stays open as long as a reader holds this object, so that a pull can finish after the file was removed.
    """

    fid: int
    path: Path
    fd: int
    size: int
    closed: bool
    max_ts: int = 0
    finished: bool = False

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.fd, size, offset)

    def __del__(self) -> None:
        os.close(self.fd)
