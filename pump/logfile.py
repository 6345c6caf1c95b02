"""One file of the value log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

COPY_BYTES = 4 << 20  # so much of a file is in memory at once where it is compared or copied


@dataclass(slots=True)
class LogFile:
    """One file. `size` is where its records end; `closed` means that nothing is written to it any more, `finished`
    that a footer follows them.

    Kept open by whoever reads from it, so that removing a file does not pull it from under a pull.
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
