"""Temporary files of a drainer: all in one folder, which goes with it, or with the next one if it was killed.

The folder holds a locked file for as long as its process lives; one whose file can be locked is nobody's any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from binlog.log import get_logger

PREFIX = "drainer-run-"
LOCK = "lock"

_log = get_logger(__name__)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """While inside, every temporary file and folder of this process is made in the folder that is yielded."""
    before = tempfile.tempdir
    place = Path(tempfile.gettempdir())
    sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tempfile.tempdir = str(folder)
        yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(place: Path) -> None:
    """Remove the folders of drainers of this user that were killed."""
    for folder in place.glob(f"{PREFIX}*"):
        if folder.is_symlink() or not _ours(folder) or not _abandoned(folder / LOCK):
            continue
        _log.info("what a killed drainer left is removed", folder=str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _abandoned(lock: Path) -> bool:
    """A folder without the file is being made just now."""
    try:
        found = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(found)
