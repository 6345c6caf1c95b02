"""When Spark's Python processes are forked, and when Spark runs Python itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drainer.spark.startup.forking import forking

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_a_local_spark_gets_a_program_that_runs_as_python(tmp_path: Path) -> None:
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
def test_another_machine_or_interpreter_is_spark_s_own_to_run(
    tmp_path: Path, master: str, conf: dict[str, str]
) -> None:
    assert forking(tmp_path, master, conf) is None
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    assert forking(place, "local[2]", {}) is None


def test_a_folder_whose_files_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.X_OK)
    assert forking(tmp_path, "local[2]", {}) is None
