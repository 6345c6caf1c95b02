"""What can be said of Spark's start without starting it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pytest
from pyspark import SparkContext
from pyspark.accumulators import _start_update_server
from structlog.testing import capture_logs

from drainer.spark.startup import warmup
from drainer.spark.startup.java import SparkUnavailable, check_java
from drainer.spark.startup.jvm_launch import python_of, settings_for, with_retries
from drainer.spark.startup.session import log_accumulator_errors, quiet_py4j, stop_session
from tests.support.servers import wait_until


@pytest.mark.parametrize(
    ("master", "wanted"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3]", "local[3,4]"),
        ("local[3,9]", "local[3,9]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_local_master_gets_task_retries(master: str, wanted: str) -> None:
    assert with_retries(master) == wanted


def test_spark_settings_of_user_override_drainers(tmp_path: Path) -> None:
    log4j = tmp_path / "log4j2.properties"
    name, without = "spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem"
    usual = "org.apache.hadoop.fs.LocalFileSystem"
    assert settings_for("local[2]", {}, log4j=log4j, classes=None)[name] == without
    assert settings_for("local[2]", {name: usual}, log4j=log4j, classes=None)[name] == usual


def test_missing_java_is_refused_with_package_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="openjdk-17-jre-headless"):
        check_java()


def test_old_java_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho java.base@11.0.2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"is Java 11\.0\.2"):
        check_java()


def test_worker_python_is_taken_from_settings_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert python_of({}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/of/the/environment")
    assert python_of({}) == "/of/the/environment"
    assert python_of({"spark.pyspark.python": "/of/the/settings"}) == "/of/the/settings"


def test_py4j_errors_of_ended_jvm_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def log(file: str) -> None:
        exec(compile(f"import logging; logging.error({file!r})", file, "exec"), {})

    with quiet_py4j():
        log("/site-packages/py4j/java_gateway.py")
        log("/site-packages/another/module.py")
    log("/site-packages/py4j/clientserver.py")
    told = [text for text in caplog.messages if text.startswith("/site-packages/")]  # not what earlier tests left
    assert told == ["/site-packages/another/module.py", "/site-packages/py4j/clientserver.py"]


@pytest.mark.parametrize(("sent", "lines"), [(b"token", []), (b"other", ["Spark's server for accumulators failed"])])
def test_closed_accumulator_connection_is_not_logged_as_error(
    capfd: pytest.CaptureFixture[str], sent: bytes, lines: list[str]
) -> None:
    """By PySpark's own server: a stop by a signal, which ends the JVM first, printed a traceback."""
    server = _start_update_server("token", False, None)
    try:
        log_accumulator_errors(cast("SparkContext", SimpleNamespace(_accumulatorServer=server)))
        with capture_logs() as logged, socket.create_connection(server.server_address) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile("rb").read() == b"", "the server has closed it, behind its error"
        assert [line["event"] for line in logged] == lines
    finally:
        server.shutdown()
        server.server_close()
    assert "Traceback" not in capfd.readouterr().err


def test_session_whose_jvm_has_ended_is_stopped() -> None:
    session = mock.Mock(stop=mock.Mock(side_effect=ConnectionRefusedError))
    gateway = session.sparkContext._gateway = mock.Mock(proc=None, folder=None)
    stop_session(session)
    gateway.shutdown.assert_called_once_with()


@pytest.mark.parametrize(
    ("registered", "stopped", "wait_s", "tasks", "said"),
    [
        ([2, 2, 1, 1, 0, 0], False, 600, [2, 2, 4], ["the warm-up of the executors has ended", 2]),
        ([0], False, 0, [2], ["executors are still starting", 0]),
        ([1], True, 600, [2], []),
    ],
)
def test_warm_up_ends_with_tasks_on_all_registered_executors_or_gives_up(
    monkeypatch: pytest.MonkeyPatch, registered: list[int], stopped: bool, wait_s: float, tasks: list[int], said: object
) -> None:
    """`registered`: the number of executors, with two cores each, the last look first. No job ends before it."""
    session, begun = mock.Mock(), list[int]()
    session.sparkContext.master = "spark://h:7077"

    def infos() -> list[None]:
        now = registered.pop() if registered[1:] else registered[0]
        session.sparkContext.defaultParallelism = max(2, 2 * now)
        return [None] * (1 + now)

    def job(_rows: object, tasks: int) -> None:
        begun.append(tasks)
        wait_until(lambda: stopped or len(registered) == 1, what="the last look")

    session.sparkContext._jsc.sc().statusTracker().getExecutorInfos = infos
    for name, value in (("POLL_S", 0.001), ("packed_rows", lambda numbers: numbers), ("run_both_modes", job)):
        monkeypatch.setattr(warmup, name, value)
    with capture_logs() as logged:
        warm_up = warmup.WarmUp(session, 2)
        warm_up.finish(lambda: stopped, wait_s)
    for one in warm_up._jobs:
        one.join()
    assert (sorted(begun), [value for line in logged for value in (line["event"], line["executors"])]) == (tasks, said)
