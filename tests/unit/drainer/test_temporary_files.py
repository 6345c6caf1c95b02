"""Temporary files go with the drainer that made them, or with the next one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from drainer.temporary_files import PREFIX, sweep, temporary_folder

CHILD = """
import signal, sys, tempfile
from drainer.temporary_files import temporary_folder
with temporary_folder() as folder:
    tempfile.mkdtemp(prefix="inside-")
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_temporary_files_are_in_one_folder_removed_at_exit(place: Path) -> None:
    with temporary_folder() as folder:
        assert folder.parent == place
        assert Path(tempfile.mkdtemp()).parent == folder
    assert list(place.iterdir()) == []
    assert tempfile.gettempdir() == str(place)


def test_sweep_removes_folder_of_killed_drainer_and_keeps_running_ones(place: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(place)}
    )
    try:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        sweep(place)
        assert folder.is_dir()
        child.kill()
        child.wait()
        assert folder.is_dir()
        with temporary_folder() as mine:
            assert list(place.iterdir()) == [mine]
    finally:
        child.kill()
        child.wait()


def test_sweep_keeps_folders_that_are_not_drainers(place: Path) -> None:
    (place / f"{PREFIX}beginning").mkdir()  # another process is about to lock it
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    sweep(place)
    assert len(list(place.iterdir())) == 3
