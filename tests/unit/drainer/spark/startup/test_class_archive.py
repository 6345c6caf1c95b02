"""A running drainer makes the archive of the JVM's classes where there is none; a script stands for the maker."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drainer.apply.progress import Stopped
from drainer.spark.startup import class_archive
from drainer.spark.startup.class_archive import make_where_missing
from drainer.spark.startup.java import MAKING, SparkUnavailable, archive_of, java_options
from drainer.spark.startup.jvm_launch import start_jvm
from drainer.spark.startup.session import open_session
from drainer.temporary_files import LOCK, locked_folder, sweep
from tests.support.servers import missing, wait_until

VERSION = "17.0.1"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(class_archive, "check_java", lambda: VERSION)
    found = archive_of(VERSION)
    found.parent.mkdir(parents=True)
    return found


def there(path: Path) -> bool:
    return path.exists()


def written(pid: Path) -> bool:
    return pid.exists() and pid.read_text().endswith(" ")


def alive(pid: Path) -> bool:
    return (Path("/proc") / pid.read_text().strip()).exists()


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def test_missing_class_archive_is_made_by_running_drainer(place: Path) -> None:
    touch = script(f"import pathlib; pathlib.Path({str(place)!r}).touch()")
    await asyncio.wait_for(make_where_missing(0, touch), 60)
    assert there(place)


@pytest.fixture
def made(place: Path) -> Path:
    place.touch()
    return place


async def test_existing_class_archive_is_not_made_again(made: Path, tmp_path: Path) -> None:
    trace = tmp_path / "made"
    await make_where_missing(0, script(f"import pathlib; pathlib.Path({str(trace)!r}).touch()"))
    assert not there(trace)


async def test_class_archive_is_not_tried_without_java(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> str:
        raise SparkUnavailable("no Java")

    monkeypatch.setattr(class_archive, "check_java", none)
    trace = tmp_path / "made"
    await make_where_missing(0, script(f"import pathlib; pathlib.Path({str(trace)!r}).touch()"))
    assert not there(trace)


@pytest.mark.parametrize("make", [script("raise SystemExit('no room')"), ("/no/such/program",)])
async def test_failed_making_of_class_archive_is_only_logged(
    place: Path, make: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        class_archive._log, "warning", lambda event, **more: told.append(f"{event} {more}"), raising=False
    )
    await asyncio.wait_for(make_where_missing(0, make), 60)
    assert len(told) == 1 and ("no room" in told[0] or "/no/such/program" in told[0])


async def test_making_of_class_archive_ends_with_drainer(place: Path, tmp_path: Path) -> None:
    trace = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(trace)!r}).write_text(f'{{os.getpid()}} '); time.sleep(600)"
    task = asyncio.ensure_future(make_where_missing(0, script(code)))
    await asyncio.to_thread(wait_until, lambda: written(trace), deadline_s=180, what="it is being made")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: not alive(trace), deadline_s=180, what="the maker ended")


async def test_making_of_class_archive_waits_for_its_delay(place: Path, tmp_path: Path) -> None:
    trace = tmp_path / "made"
    with pytest.raises(TimeoutError):
        make = script(f"import pathlib; pathlib.Path({str(trace)!r}).touch()")
        await asyncio.wait_for(make_where_missing(600, make), 0.2)
    assert not there(trace)


# Where the archive of classes is, and that a JVM without one is started as before.


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
            sweep(tmp_path, MAKING)
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
        open_session(start_jvm(master="local[1]", output=tmp_path / "spark.log", conf={}), lambda: True)
    assert not left.exists()
