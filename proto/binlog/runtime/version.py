"""Version information for `-V` and status pages (`K-04`)."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "tidb-binlog-spark"
_PACKAGE = Path(__file__).resolve().parents[1]


def release() -> str:
    """Return the installed version, such as 0.1.0."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def commit_hash() -> str:
    """Return the commit from which the wheel was built, or that of the running work tree; `unknown` if there is
    neither.
    """
    return next(iter(_built()), "") or checked_out(_PACKAGE.parents[1]) or "unknown"


def _built() -> list[str]:
    """Return the lines of the file that a build writes: the commit, and the time of the build in UTC."""
    with contextlib.suppress(OSError):
        return (_PACKAGE / "COMMIT").read_text().splitlines()
    return []


def checked_out(tree: Path) -> str:
    """Return the commit of HEAD in the checkout at `tree`, as the program git says it; empty if `tree` is not a
    checkout, or there is no git."""
    command = ("git", "--git-dir", str(tree / ".git"), "rev-parse", "--verify", "--quiet", "HEAD")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def version_text() -> str:
    """Return five lines (`K-04`). In place of the original's Go version, they contain Python's version."""
    of_sources = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)  # where nothing was built
    built = next(iter(_built()[1:]), f"{of_sources:%Y-%m-%d %H:%M:%S}")
    return "\n".join(
        (
            f"Release Version: {release()}",
            f"Git Commit Hash: {commit_hash()}",
            f"Build TS: {built}",
            f"Python Version: {platform.python_version()}",
            f"Python OS/Arch: {platform.system().lower()}/{platform.machine()}",
        )
    )
