"""What -V prints (K-04)."""

from __future__ import annotations

from pathlib import Path

import binlog
from binlog.runtime.version import checked_out, commit_hash, release, version_text

import drainer
import pump
import pumpclient


def test_version_text_has_lines_of_original() -> None:
    names = [line.partition(": ")[0] for line in version_text().splitlines()]
    assert names == ["Release Version", "Git Commit Hash", "Build TS", "Python Version", "Python OS/Arch"]
    assert release() in version_text()
    assert commit_hash()


def test_packages_have_version_of_release() -> None:
    assert binlog.__version__ == pump.__version__ == pumpclient.__version__ == drainer.__version__ == release()


def test_checked_out_finds_commit_in_every_git_layout(tmp_path: Path) -> None:
    """HEAD on a branch, packed, detached, and in a linked work tree; nothing where there is no git."""
    assert checked_out(tmp_path) == ""
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\naaaa refs/heads/other\nbbbb refs/heads/main\n")
    assert checked_out(tmp_path) == "bbbb"
    (git / "refs/heads/main").write_text("cccc\n")
    assert checked_out(tmp_path) == "cccc"
    linked, place = tmp_path / "linked", git / "worktrees/linked"
    linked.mkdir()
    place.mkdir(parents=True)
    (linked / ".git").write_text(f"gitdir: {place}\n")
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "commondir").write_text("../..\n")
    assert checked_out(linked) == "cccc"
    (git / "HEAD").write_text("dddd\n")
    assert checked_out(tmp_path) == "dddd"
