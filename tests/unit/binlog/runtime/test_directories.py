"""What is synced, so that a power cut does not take it away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from binlog.runtime.directories import sync_tree

from drainer.lake.files import sync_commit


def synced(work: Callable[[], None]) -> set[str]:
    """The names of files and directories that `work` syncs."""
    found: set[str] = set()
    with mock.patch.object(os, "fsync", lambda handle: found.add(Path(f"/proc/self/fd/{handle}").readlink().name)):
        work()
    return found


def test_new_files_and_all_names_of_a_tree_are_synced(tmp_path: Path) -> None:
    inner = tmp_path / "a"
    inner.mkdir()
    for file, modified_s in ((tmp_path / "old", 100), (tmp_path / "new", 300), (inner / "newer", 400)):
        file.write_text("x")
        os.utime(file, (modified_s, modified_s))
    assert synced(lambda: sync_tree(tmp_path, 200)) == {tmp_path.name, "new", "a", "newer"}


def test_a_commit_is_synced_and_the_first_one_with_its_table(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version in (0, 1):
        (log / f"{version:020}.json").write_text("{}")
    assert synced(lambda: sync_commit(tmp_path, 0)) == {f"{0:020}.json", "_delta_log", tmp_path.name}
    assert synced(lambda: sync_commit(tmp_path, 1)) == {f"{1:020}.json", "_delta_log"}
