"""Spark's start beside the daemon's own: who asks for the session gets it or the reason, and nothing is left of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from drainer.apply.progress import Stopped
from drainer.spark.startup.java import SparkUnavailable
from drainer.spark.startup.session_opening import Opening
from tests.support.servers import wait_until
from tests.unit.drainer.spark.startup.test_jvm_launch import spark_home, started

LOCAL = "local[1]"


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JVM that never tells of its gateway; its folder holds `pid`."""
    for name, value in spark_home(tmp_path, "exec sleep 600").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("drainer.spark.startup.jvm_launch.check_java", lambda: "17")
    return tmp_path


def test_jvm_starts_before_session_is_requested(waiting: Path) -> None:
    opening = Opening(master=LOCAL, output=waiting / "spark.log", conf={})
    try:
        wait_until(lambda: (waiting / "pid").exists() and started(waiting), deadline_s=180, what="the JVM runs")
    finally:
        opening.close()
    wait_until(lambda: not started(waiting), what="it ended")


def test_session_start_that_is_stopped_ends_jvm(waiting: Path) -> None:
    stop = threading.Event()
    opening = Opening(master=LOCAL, output=waiting / "spark.log", conf={}, stopping=stop.is_set)
    try:
        wait_until(lambda: (waiting / "pid").exists(), deadline_s=180, what="the JVM runs")
        stop.set()
        with pytest.raises(Stopped):
            opening.session()
        wait_until(lambda: not started(waiting), what="it ended")
    finally:
        opening.close()


def test_session_requested_after_close_raises_stopped(waiting: Path) -> None:
    opening = Opening(master=LOCAL, output=waiting / "spark.log", conf={})
    opening.close()
    opening.close()
    with pytest.raises(Stopped):
        opening.session()


def test_session_request_raises_reason_of_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    opening = Opening(master=LOCAL, output=tmp_path / "spark.log", conf={})
    with pytest.raises(SparkUnavailable, match="openjdk-17-jre-headless"):
        opening.session()
    opening.close()
    assert not (tmp_path / "spark.log").exists()


def test_early_start_imports_no_slow_modules() -> None:
    """pyspark and its kin take half a second and more, the clients of etcd and the destination as much again."""
    code = "import sys, drainer.__main__; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    slow = {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "aiohttp", "aetcd", "pymysql", "sqlite3"}
    assert not slow & set(done.stdout.split())
