"""Version information for `-V` and status pages (`K-04`)."""

from __future__ import annotations

import contextlib
import platform
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
    """Return the commit of the wheel, or of the running work tree; `unknown` if there is neither."""
    return next(iter(_built()), "") or checked_out(_PACKAGE.parents[1]) or "unknown"


def _built() -> list[str]:
    """Return the lines of the file that a build writes: the commit, and the time of the build in UTC."""
    with contextlib.suppress(OSError):
        return (_PACKAGE / "COMMIT").read_text().splitlines()
    return []


def checked_out(tree: Path) -> str:
    """Return the commit of HEAD in the checkout at `tree`; empty if it is not a checkout."""
    git = tree / ".git"
    try:
        if git.is_file():  # a linked work tree: the file names its git folder, which names the common folder with refs
            git = tree / git.read_text().removeprefix("gitdir: ").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / "commondir").exists():
            git = git / (git / "commondir").read_text().strip()
        if (git / name).exists():
            return (git / name).read_text().strip()
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split(" ", 1)[0]
    except (OSError, UnicodeDecodeError):
        pass
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
