"""System calls fail below the program."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

from tests.crash.syscalls import Interception, require_interception
from tests.support.servers import ROOT


def test_intercepted_sync_returns_given_error(tmp_path: Path) -> None:
    require_interception(tmp_path)
    interception, file = Interception(tmp_path), tmp_path / "file"
    try:
        for error, path in ((0, ""), (errno.EIO, "file"), (errno.EIO, "other"), (errno.ENOSPC, "file")):
            interception.rule = lambda found, error=error, path=path: error if found.endswith(f"/{path}") else 0  # type: ignore[misc]
            command = [sys.executable, "-m", *interception.before, "tests.crash.sync_once", str(file)]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
            assert ended.returncode == (error if path == "file" else 0), ended.stderr
        assert interception.failed == [str(file)] * 2
    finally:
        interception.close()
