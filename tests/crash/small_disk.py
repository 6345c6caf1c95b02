"""A process with a disk of its own: a tmpfs in a mount namespace, which goes with the process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

MOUNT = 'mount -t tmpfs -o "size=$0" binlog-test "$1" && shift && exec "$@"'


def _unshare() -> Sequence[str]:
    own_user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ["unshare", "--mount", *own_user, "sh", "-c", MOUNT]


def on_small_disk(directory: Path, size_bytes: int, argv: Sequence[str]) -> list[str]:
    """`argv`, so that it finds a tmpfs of that size at `directory`. The process keeps its pid."""
    return [*_unshare(), str(size_bytes), str(directory), *argv]


def seen_by(pid: int, path: Path) -> Path:
    """The same path as that process has it."""
    return Path(f"/proc/{pid}/root{path}")


def require_small_disk(directory: Path) -> None:
    """Skip where nobody may mount: a container may forbid it."""
    if shutil.which("unshare") is None:
        pytest.skip("no small disk without unshare")
    command = on_small_disk(directory, 1 << 20, ["true"])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if ended.returncode:
        pytest.skip(f"no small disk: {ended.stderr.strip()}")
