"""How a JVM that does not come up is reported and ended; scripts stand for spark-submit."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkConf

from drainer.apply.progress import Stopped
from drainer.spark.startup.java import SparkUnavailable
from drainer.spark.startup.jvm_launch import PYTHON, Opening, connect, forking, properties, start
from tests.support.servers import free_port, wait_until


def spark_home(tmp_path: Path, script: str) -> Mapping[str, str]:
    submit = tmp_path / "home" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    submit.chmod(0o755)
    return {"SPARK_HOME": str(tmp_path / "home")}


def started(tmp_path: Path) -> bool:
    """Whether the script runs. The shell creates the file of its pid a moment before it writes to it."""
    pid = (tmp_path / "pid").read_text().strip()
    return bool(pid) and Path(f"/proc/{pid}").exists()


def test_jvm_that_exits_early_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    """Also with exit code 0, for which pyspark waits for ever."""
    for number, code in enumerate((3, 0)):
        place = tmp_path / str(number)
        place.mkdir()
        jvm = start({}, spark_home(place, f"exit {code}"), place / "log")
        with pytest.raises(SparkUnavailable, match=f"exit code {code}"):
            connect(jvm, SparkConf(loadDefaults=False))
        assert not jvm.folder.exists()


def test_jvm_with_silent_gateway_is_reported_and_ended(tmp_path: Path) -> None:
    (tmp_path / "told").write_bytes(struct.pack(">ii", free_port(), 6) + b"secret")
    script = f'cp {tmp_path}/told "$TOLD.new"; mv "$TOLD.new" "$TOLD"; exec sleep 600'
    home = spark_home(tmp_path, script.replace("$TOLD", "$_PYSPARK_DRIVER_CONN_INFO_PATH"))
    before = dict(os.environ)
    jvm = start({}, home, tmp_path / "log")
    with pytest.raises(SparkUnavailable, match="gateway does not answer"):
        connect(jvm, SparkConf(loadDefaults=False))
    wait_until(lambda: not started(tmp_path), what="what was started ended")
    assert dict(os.environ) == before


def test_jvm_start_that_is_stopped_ends_its_process(tmp_path: Path) -> None:
    jvm = start({}, spark_home(tmp_path, "exec sleep 600"), tmp_path / "log")
    with pytest.raises(Stopped):
        connect(jvm, SparkConf(loadDefaults=False), stopping=lambda: (tmp_path / "pid").exists() and started(tmp_path))
    wait_until(lambda: not started(tmp_path), what="what was started ended")


def test_jvm_command_line_hides_settings_in_properties_file(tmp_path: Path) -> None:
    script = f'printf "%s\\n" "$@" "$EXTRA" > {tmp_path}/given; cat "$2" > {tmp_path}/settings; exit 1'
    settings = {"spark.a": "x y", "spark.authenticate.secret": "s3cret"}
    jvm = start(settings, {**spark_home(tmp_path, script), "EXTRA": "e"}, tmp_path / "log")
    with pytest.raises(SparkUnavailable):
        connect(jvm, SparkConf(loadDefaults=False))
    first, _file, *rest = (tmp_path / "given").read_text().splitlines()
    assert (first, rest) == ("--properties-file", ["--load-spark-defaults", "pyspark-shell", "e"])
    assert "s3cret" not in (tmp_path / "given").read_text()
    assert sorted((tmp_path / "settings").read_text().splitlines()) == [
        "spark.a=x\\ y",
        "spark.authenticate.secret=s3cret",
    ]


@given(st.dictionaries(st.text("abz.:=#! \\é", min_size=1), st.text("ab:=#! \\\n\r\t\fé€"), max_size=4))
def test_spark_properties_read_back_equal(wanted: dict[str, str]) -> None:
    found = dict(map(_property, properties(wanted).splitlines()))
    assert found == wanted


def _property(line: str) -> tuple[str, str]:
    """As java.util.Properties reads a line: the name ends at the first of `=`, `:` and white space that no backslash
    precedes; behind it white space is skipped."""
    found = re.fullmatch(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*((?:\\.|[^\\])*)", line)
    assert found is not None and line[:1] not in ("#", "!"), line
    named = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
    name, value = (re.sub(r"\\(.)", lambda one: named.get(one[1], one[1]), part) for part in found.groups())
    return name, value


# When Spark's Python processes are forked, and when Spark runs Python itself.


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


@on_linux
def test_local_spark_gets_fork_client_that_runs_as_python(tmp_path: Path) -> None:
    place = tmp_path / "it's a folder"
    place.mkdir()
    server = forking(place, "local[2]", {})
    assert server[:3] == (sys.executable, "-m", "drainer.spark.startup.fork_server")
    ran = subprocess.run([place / PYTHON, "-c", "print('no server yet')"], capture_output=True, text=True, check=True)
    assert ran.stdout == "no server yet\n"


@on_linux
@pytest.mark.parametrize(
    ("master", "conf"),
    [("spark://h:7077", {}), ("k8s://h", {}), ("local[2]", {"spark.pyspark.python": "/usr/bin/another"})],
)
def test_forking_is_off_for_cluster_or_other_interpreter(tmp_path: Path, master: str, conf: dict[str, str]) -> None:
    assert not forking(tmp_path, master, conf)
    assert not list(tmp_path.iterdir())


@on_linux
def test_forking_is_off_with_path_too_long_for_socket(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    assert not forking(place, "local[2]", {})


@on_linux
def test_forking_is_off_with_folder_without_execute_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.X_OK)
    assert not forking(tmp_path, "local[2]", {})


# Spark's start beside the daemon's own: who asks for the session gets it or the reason, and nothing is left of it.


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
