"""Where the archive of classes is, and that a JVM without one is started as before."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drainer.apply.progress import Stopped
from drainer.spark.startup.java import MAKING, archive_of, java_options, remove_leftovers
from drainer.spark.startup.session import start_session
from drainer.temporary_files import LOCK, locked_folder
from tests.support.servers import missing


def test_class_archive_path_depends_on_java_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive_of("17.0.1").parent == tmp_path / "drainer"
    assert archive_of("17.0.1") != archive_of("17.0.2")


def test_java_options_name_only_existing_class_archive(tmp_path: Path) -> None:
    classes = tmp_path / "classes.jsa"
    assert "SharedArchiveFile" not in java_options(tmp_path / "log4j2.properties", classes, "")
    classes.touch()
    assert f'-XX:SharedArchiveFile="{classes}"' in java_options(tmp_path / "log4j2.properties", classes, "-Xss2m")
    assert java_options(tmp_path / "log4j2.properties", None, "-Xss2m").endswith("-Xss2m")


MAKER = """
import sys
from pathlib import Path
from drainer.apply.progress import Stopped
from drainer.temporary_files import LOCK, locked_folder
from drainer.spark.startup.java import MAKING
with locked_folder(Path(sys.argv[1]), MAKING) as folder:
    (folder / "classes.jsa").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_leftovers_of_killed_archive_maker_are_removed_and_running_ones_kept(tmp_path: Path) -> None:
    """Only that: one that is under way, here or in another process, keeps its folder."""
    command = [sys.executable, "-c", MAKER, str(tmp_path)]
    makers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        folders = [Path(maker.stdout.readline().strip()) for maker in makers if maker.stdout is not None]
        makers[0].send_signal(signal.SIGKILL)
        makers[0].wait()
        archive = tmp_path / "spark-4-java-17.jsa"
        archive.touch()
        with locked_folder(tmp_path, "another-") as other, locked_folder(tmp_path, MAKING) as mine:
            remove_leftovers(archive)
            assert [folder.exists() for folder in folders] == [False, True]
            assert mine.exists() and other.exists() and archive.exists()
    finally:
        for maker in makers:
            maker.kill()
            maker.communicate()


def test_start_removes_leftovers_of_killed_archive_maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        missing("java")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = tmp_path / "drainer" / f"{MAKING}x"
    left.mkdir(parents=True)
    (left / LOCK).touch()
    with pytest.raises(Stopped):
        start_session(master="local[1]", output=tmp_path / "spark.log", conf={}, stopping=lambda: True)
    assert not left.exists()
