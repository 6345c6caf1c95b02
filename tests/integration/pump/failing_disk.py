"""`python -m tests.integration.pump.failing_disk SWITCH …`: a pump whose fdatasync fails while SWITCH exists."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

SWITCH = Path(sys.argv.pop(1))
_fdatasync = os.fdatasync


def fdatasync(fd: int) -> None:
    if SWITCH.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _fdatasync(fd)


os.fdatasync = fdatasync

from pump.__main__ import main  # noqa: E402  it binds fdatasync when it is imported

main()
