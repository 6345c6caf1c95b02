"""Directories and names in them that a crash of the machine does not take away."""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, and sync each parent: a lost directory takes its files with it.
    Raises OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Make a file durable, but not its name. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names of the files in a directory durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path, after_s: float) -> None:
    """Make files that were modified after this time (seconds since 1970), and all names, under a directory durable.
    Raises OSError, but not for a file that is removed meanwhile."""
    sync_directory(path)
    for one in path.iterdir():
        try:
            if one.is_dir():
                sync_tree(one, after_s)
            elif one.stat().st_mtime > after_s:
                sync_file(one)
        except FileNotFoundError:
            continue
