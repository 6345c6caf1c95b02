"""Temporary files of a drainer, in one folder that is removed at its end, or by the next drainer if it was killed.

The folder contains a file that its process keeps locked; a folder whose file can be locked is abandoned.
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
def temporary_folder() -> Iterator[Path]:
    """Create a folder and use it for all temporary files of this process while inside. ConfigError if impossible."""
    before = tempfile.tempdir
    try:
        parent = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError(f"cannot create temporary files, set TMPDIR: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(parent, PREFIX))
        except OSError as error:
            raise ConfigError(f"cannot create temporary files in {parent} ({error.strerror}): set TMPDIR") from error
        stack.callback(setattr, tempfile, "tempdir", before)
        tempfile.tempdir = str(folder)
        yield folder


@contextlib.contextmanager
def locked_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new locked folder in `parent`, removed at the end, or by the next call with the same prefix if this process is
    killed. OSError if it cannot be created."""
    sweep(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def check_data_dir(data_dir: Path) -> None:
    """Create the directory and check that it is writable. ConfigError gives the reason."""
    probe = data_dir / ".writable"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        why = error.strerror
        if isinstance(error, FileExistsError):
            why = "a file of that name exists"
        elif isinstance(error, NotADirectoryError):
            why = "a file has the name of one of its parents"
        raise ConfigError(f"data-dir {data_dir} cannot be used: {why}") from error


def sweep(parent: Path, prefix: str = PREFIX) -> None:
    """Remove abandoned folders of this user's killed drainers."""
    for folder in parent.glob(f"{prefix}*"):
        if folder.is_symlink() or not _owned_by_user(folder) or not _abandoned(folder / LOCK):
            continue
        _log.info("removing the temporary files of a killed drainer", folder=str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _owned_by_user(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _abandoned(lock: Path) -> bool:
    """Whether no process holds the lock. A folder without the lock file is just being created."""
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
