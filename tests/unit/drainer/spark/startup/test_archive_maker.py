"""A running drainer makes the archive of the JVM's classes where there is none; a script stands for the maker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from drainer.spark.startup import archive_maker
from drainer.spark.startup.archive_maker import make_where_missing
from drainer.spark.startup.java import SparkUnavailable, archive_of
from tests.support.servers import wait_until

VERSION = "17.0.1"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(archive_maker, "check_java", lambda: VERSION)
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

    monkeypatch.setattr(archive_maker, "check_java", none)
    trace = tmp_path / "made"
    await make_where_missing(0, script(f"import pathlib; pathlib.Path({str(trace)!r}).touch()"))
    assert not there(trace)


@pytest.mark.parametrize("make", [script("raise SystemExit('no room')"), ("/no/such/program",)])
async def test_failed_making_of_class_archive_is_only_logged(
    place: Path, make: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        archive_maker._log, "warning", lambda event, **more: told.append(f"{event} {more}"), raising=False
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
