"""What -V prints (K-04)."""

from __future__ import annotations

from binlog.version import commit_hash, release, version_text


def test_lines() -> None:
    names = [line.partition(": ")[0] for line in version_text().splitlines()]
    assert names == ["Release Version", "Git Commit Hash", "Build TS", "Python Version", "Python OS/Arch"]
    assert release() in version_text()
    assert commit_hash()
