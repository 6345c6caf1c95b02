"""A lock file for the one process that may write to a destination."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from binlog.runtime.directories import make_directory

from drainer.sink.errors import DestinationRefused, LockHeld


def lock(path: Path) -> int:
    """Lock `<path>.lock`, making it and its directory; the lock is held until the returned descriptor is closed, or the
    process ends.

    Raises LockHeld while another process holds it, and DestinationRefused where it cannot be made or locked."""
    beside = path.with_name(path.name + ".lock")
    try:
        make_directory(path.parent)
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DestinationRefused(
            f"cannot make {beside}: {error.strerror}; {path.parent} must be a directory in which this user may write"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise LockHeld(f"{path} is being written by another drainer (it holds {beside})") from error
    except OSError as error:
        os.close(handle)
        raise DestinationRefused(
            f"{beside} cannot be locked ({error}): put {path} on a file system with locks"
        ) from error
    return handle
