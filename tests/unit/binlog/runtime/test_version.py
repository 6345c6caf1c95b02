"""What -V prints (K-04)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import binlog
import pytest
from binlog.runtime.version import checked_out, commit_hash, release, version_text

import drainer
import pump
import pumpclient

ROOT = Path(__file__).parents[4]


def test_version_text_has_lines_of_original() -> None:
    names = [line.partition(": ")[0] for line in version_text().splitlines()]
    assert names == ["Release Version", "Git Commit Hash", "Build TS", "Python Version", "Python OS/Arch"]
    assert release() in version_text()
    assert commit_hash()


def test_packages_have_version_of_release() -> None:
    assert binlog.__version__ == pump.__version__ == pumpclient.__version__ == drainer.__version__ == release()


def test_checked_out_is_empty_outside_checkout_and_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder below a checkout is none itself: a package that was installed there is not that checkout's."""
    assert checked_out(tmp_path) == ""
    assert checked_out(ROOT / "proto") == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checked_out(ROOT) == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_checked_out_finds_commit_in_every_git_layout(tmp_path: Path) -> None:
    """HEAD on a branch, packed, detached, and in a linked work tree; nothing before the first commit."""
    made = tmp_path / "made"
    git(tmp_path, "init", "--quiet", str(made))
    assert checked_out(made) == ""
    git(made, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "--allow-empty", "--message", "one")
    commit = git(made, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40,}", commit) and checked_out(made) == commit
    git(made, "pack-refs", "--all")
    assert checked_out(made) == commit
    git(made, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "linked"))
    assert checked_out(tmp_path / "linked") == commit
    git(made, "checkout", "--quiet", "--detach")
    assert checked_out(made) == commit


def git(directory: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return ran.stdout.strip()
