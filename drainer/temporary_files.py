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

from binlog.errors import ConfigError
from binlog.runtime.log import get_logger

PREFIX = "drainer-run-"
LOCK = "lock"

_log = get_logger(__name__)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """While inside, temporary files and folders of this process are made in the folder that is yielded. ConfigError."""
    before = tempfile.tempdir
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError(f"temporary files cannot be made anywhere, set TMPDIR: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(place, PREFIX))
        except OSError as error:
            raise ConfigError(f"temporary files cannot be made in {place} ({error.strerror}): set TMPDIR") from error
        stack.callback(setattr, tempfile, "tempdir", before)
        tempfile.tempdir = str(folder)
        yield folder


@contextlib.contextmanager
def locked_folder(place: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `place`, removed at the end, or by the next one of the same prefix if this process is killed.
    OSError."""
    sweep(place, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def check_data_dir(data_dir: Path) -> None:
    """Make it, and a file in it. ConfigError says what is in the way."""
    probe = data_dir / ".writable"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        why = "a file is in its place" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise ConfigError(f"data-dir {data_dir} cannot be used: {why}") from error


def sweep(place: Path, prefix: str = PREFIX) -> None:
    """Remove the folders of drainers of this user that were killed."""
    for folder in place.glob(f"{prefix}*"):
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
