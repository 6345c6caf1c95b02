"""What is told of a node that cannot run tasks, from texts as Spark 4.2 writes them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from binlog.errors import ConfigError

from drainer.spark import errors
from drainer.spark.errors import ErrorSeal, NodeLacks, SparkFailed, WorkerNotStarted
from drainer.spark.startup import node_requirements
from drainer.spark.startup.node_requirements import (
    INSTALL,
    build,
    check_build,
    lacking,
    lacking_in,
    last_error,
    mismatch,
    warn_of_loopback,
    watched,
)
from tests.support.servers import wait_until


class Log:
    """Keeps one field of every warning."""

    def __init__(self, field: str, kept: list[str]) -> None:
        self._field, self._kept = field, kept

    def warning(self, _text: str, **fields: str) -> None:
        self._kept.append(fields[self._field])


LOST = (
    "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent failure: Lost task 1.3 in stage "
    "0.0 (TID 7) (10.0.0.5 executor 3): "
)
WORKER = LOST + (
    "org.apache.spark.SparkException: \nError from python worker:\n  {said}\nPYTHONPATH was:\n  /opt/x\n"
    "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
    "drainer.spark.startup.worker_imports's "
    "stdout and terminated with code: 1.\n\tat org.apache.spark.api.python"
)
NO_MODULE = (
    "/opt/binlog/bin/python: Error while finding module specification for 'drainer.spark.startup.worker_imports' "
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            WORKER.format(said=f"{NO_MODULE}(ModuleNotFoundError: No module named 'drainer')"),
            "has no module drainer: pip",
        ),
        (WORKER.format(said="ModuleNotFoundError: No module named 'pyarrow'"), "has no module pyarrow: pip install"),
        (
            LOST
            + 'java.io.IOException: Cannot run program "/opt/binlog/bin/python": error=2, No such file or directory',
            "has no Python at /opt/binlog/bin/python: every node",
        ),
        (
            WORKER.format(said=mismatch("0.2.0 b0c4", "0.1.0 a1b2")),
            "has another version: drainer build 0.1.0 a1b2 is installed here, but the driver runs build 0.2.0",
        ),
        (
            LOST + "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "runs Python 3.12, and the drainer Python 3.11,",
        ),
    ],
)
def test_missing_requirement_is_reported_with_node_name(text: str, wanted: str) -> None:
    found = ErrorSeal("s").unwrap(RuntimeError(text))
    assert isinstance(found, NodeLacks)
    told = str(found)
    assert told.startswith("node 10.0.0.5 (executor 3) ")
    assert wanted.rstrip(",") in told
    assert "\n" not in told


def test_missing_package_is_found_in_what_python_prints() -> None:
    bare = [sys.executable, "-I", "-S", "-m", "drainer.spark.startup.worker_imports"]  # without installed packages
    said = subprocess.run(bare, capture_output=True, text=True, check=False).stderr
    assert lacking(WORKER.format(said=said)) == f"node 10.0.0.5 (executor 3) has no module drainer: {INSTALL}"


@pytest.mark.parametrize(
    "text",
    [
        LOST + "OSError: table `No module named 'drainer'` is full",
        LOST + "ModuleNotFoundError: No module named 'x'\n  File worker.py",  # of a task, which had a worker
        "ModuleNotFoundError: No module named 'drainer'",
        WORKER.format(said="Segmentation fault"),
        "",
    ],
)
def test_other_spark_error_is_not_reported_as_missing_requirement(text: str) -> None:
    assert lacking(text) is None


NULL_POINTER = LOST + "java.lang.NullPointerException"


def test_missing_requirement_is_found_in_earlier_attempt_of_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    earlier = WORKER.format(said="ModuleNotFoundError: No module named 'of_an_earlier_life'")
    log.write_text(f"WARN TaskSetManager: {earlier}\n")
    begin = log.stat().st_size
    assert lacking_in(log, begin) is None
    no_grpc = "(ModuleNotFoundError: No module named 'grpc')"
    with log.open("a") as more:
        more.write(f"WARN TaskSetManager: {WORKER.format(said=NO_MODULE + no_grpc)}\n")
        more.write(f"WARN TaskSetManager: {NULL_POINTER}\nERROR TaskSetManager: Task 0 failed 4 times; aborting job\n")
    assert lacking_in(log, begin) == f"node 10.0.0.5 (executor 3) has no module grpc: {node_requirements.INSTALL}"


@pytest.mark.parametrize(
    ("wanted", "here", "fits"),
    [
        ("0.1.0 aa", "0.1.0 aa", True),
        ("0.1.0 aa", "0.1.0 unknown", True),
        ("unknown unknown", "0.1.0 aa", True),
        ("", "0.1.0 aa", True),  # a local master: the worker is the driver's own
        ("0.1.0 aa", "0.1.0 bb", False),
        ("0.2.0 unknown", "0.1.0 unknown", False),
    ],
)
def test_build_mismatch_is_found_between_driver_and_worker(wanted: str, here: str, fits: bool) -> None:
    assert (mismatch(wanted, here) == "") is fits


def test_worker_of_another_build_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(node_requirements.BUILD, build())
    check_build()
    monkeypatch.setenv(node_requirements.BUILD, "9.9.9 unknown")
    with pytest.raises(SystemExit, match=r"build 9\.9\.9"):
        check_build()


def test_executor_environment_has_build_of_driver() -> None:
    assert node_requirements.settings() == {f"spark.executorEnv.{node_requirements.BUILD}": build()}


def test_configuration_error_of_worker_names_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = ErrorSeal("s")
    monkeypatch.setattr(errors.socket, "gethostname", lambda: "node-7")
    carried = seal.carry(ConfigError("security: ssl-ca /x: No such file or directory"))
    assert str(seal.unwrap(RuntimeError(str(carried)))) == "security: ssl-ca /x: No such file or directory"
    monkeypatch.setattr(errors.socket, "gethostname", lambda: "driver")
    found = seal.unwrap(RuntimeError(str(carried)))
    assert type(found) is ConfigError
    assert str(found) == "security: ssl-ca /x: No such file or directory (on node-7)"


def test_first_task_without_executor_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(node_requirements, "_warn_late", lambda *_: told.set())
    before = set(threading.enumerate())
    with watched("local[2]", 0.0):
        pass
    with watched("spark://h:7077", 3600.0):
        pass
    assert not told.is_set()
    late = set(threading.enumerate()) - before
    wait_until(lambda: not any(thread.is_alive() for thread in late), what="nothing is waited for any more")
    with watched("spark://h:7077", 0.0):
        assert told.wait(60)


def test_first_task_failure_is_logged_only_for_missing_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(node_requirements, "_log", Log("why", told))
    with watched("spark://h:7077", 3600.0):
        raise SparkFailed("the session was stopped")
    assert told == []
    with watched("spark://h:7077", 3600.0):
        raise SparkFailed(WORKER.format(said="ModuleNotFoundError: No module named 'grpc'"))
    assert told == [f"node 10.0.0.5 (executor 3) has no module grpc: {node_requirements.INSTALL}"]


def test_first_task_failure_without_text_is_not_raised() -> None:
    """The JVM, which is asked for the text, has ended: the drainer is stopped while it warms up."""

    class WithoutText(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError("the JVM has ended")

    with watched("local[2]"):
        raise WithoutText


def test_last_error_of_this_start_is_found_in_spark_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("2026/11/22 06:16:07.724 ERROR Old: of an earlier life\n")
    begin = log.stat().st_size
    assert last_error(log, begin) == ""
    with log.open("a") as more:
        more.write("2026/11/22 06:16:08.724 WARN Inbox: no\n2026/11/22 06:16:09.000 ERROR A: one\n\tat x\n")
    assert last_error(log, begin) == "one"
    with log.open("a") as more:
        more.write("2026/11/22 06:16:10.724 ERROR B: killed. Reason: Master removed our application: FAILED\n")
        more.write("2026/11/22 06:16:11.724 ERROR Inbox: Ignoring error\n")
    assert "its executors kept exiting" in last_error(log, begin)


@pytest.mark.parametrize(
    ("master", "host", "told"),
    [
        ("spark://h:7077", "127.0.0.1", True),
        ("k8s://https://h", "localhost", True),
        ("spark://h:7077", "::1", True),
        ("spark://h:7077", "10.0.0.7", False),
        ("spark://h:7077", "db.example.com", False),
        ("local[2]", "127.0.0.1", False),
    ],
)
def test_loopback_address_is_warned_of_on_cluster(
    master: str, host: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        node_requirements, "_log", type("Log", (), {"warning": lambda _self, _text, **kw: said.append(kw["host"])})()
    )
    warn_of_loopback(master, {"[syncer.to] host": host, "upstream.host": "db.example"})
    assert said == ([host] if told else [])


@pytest.mark.parametrize(
    ("behind", "is_start"),
    [
        ("\n\tat org.apache.spark.api.python.PythonWorkerFactory.stopDaemon(PythonWorkerFactory.scala)", True),
        (": x\n\tat org.apache.spark.api.python.PythonWorkerFactory.stopDaemon(PythonWorkerFactory.scala)", True),
        (
            "\n\tat java.base/java.util.Objects.requireNonNull(Objects.java:209)\n\tat java.base/sun.nio.fs.X(Y.java:1)"
            "\n\tat org.apache.spark.api.python.PythonWorkerFactory.createWorker$1(PythonWorkerFactory.scala:167)",
            True,
        ),
        ("", True),
        ("\n\nDriver stacktrace:\n\tat org.apache.spark.scheduler.DAGScheduler", True),
        ("\n\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala)", False),
    ],
)
def test_worker_start_failure_without_reason_is_recognised(behind: str, is_start: bool) -> None:
    found = ErrorSeal("s").unwrap(RuntimeError(NULL_POINTER + behind))
    assert type(found) is (WorkerNotStarted if is_start else SparkFailed)
    assert str(found).startswith("node 10.0.0.5 (executor 3) cannot start a Python worker") is is_start
    assert (node_requirements.INSTALL in str(found)) is is_start
    assert is_start or "NullPointerException" in str(found)
