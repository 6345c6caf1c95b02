"""When Spark's Python processes are forked, and when Spark runs Python itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drainer.spark.startup.jvm_launch import forking

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_local_spark_gets_fork_client_that_runs_as_python(tmp_path: Path) -> None:
    place = tmp_path / "it's a folder"
    place.mkdir()
    found = forking(place, "local[2]", {})
    assert found is not None
    assert found.server[:3] == (sys.executable, "-m", "drainer.spark.startup.fork_server")
    ran = subprocess.run([found.python, "-c", "print('no server yet')"], capture_output=True, text=True, check=True)
    assert ran.stdout == "no server yet\n"


@pytest.mark.parametrize(
    ("master", "conf"),
    [("spark://h:7077", {}), ("k8s://h", {}), ("local[2]", {"spark.pyspark.python": "/usr/bin/another"})],
)
def test_forking_is_off_for_cluster_or_other_interpreter(tmp_path: Path, master: str, conf: dict[str, str]) -> None:
    assert forking(tmp_path, master, conf) is None
    assert not list(tmp_path.iterdir())


def test_forking_is_off_with_path_too_long_for_socket(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    assert forking(place, "local[2]", {}) is None


def test_forking_is_off_with_folder_without_execute_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.X_OK)
    assert forking(tmp_path, "local[2]", {}) is None
