"""Starts the JVM under drainer.spark.supervisor and connects to its gateway.

pyspark's own launch makes the JVM a child of the drainer that nobody ends when the drainer is killed while it starts.
Here the process is ours; pyspark is told of the gateway as spark-submit tells it, by port and secret.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from drainer.progress import Stopped
from drainer.spark import supervisor
from drainer.spark.errors import SparkUnavailable

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
LOOK_S = 0.02
START_S = 300.0


def launch(
    conf: SparkConf, environment: Mapping[str, str], output: IO[bytes], stopping: Callable[[], bool] = lambda: False
) -> Any:
    """py4j's gateway to a new JVM; its `proc` is the supervisor, which ends with the JVM. `environment`: additions for
    the JVM and its workers. Raises SparkUnavailable, and Stopped as soon as `stopping` says so."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return launch_gateway(conf)  # somebody else's JVM
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
        told, settings = Path(folder) / "connection", Path(folder) / "spark.conf"
        settings.write_text(properties(conf), encoding="utf-8")
        process = _start(settings, {**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}, output)
        try:
            port, secret = _connection(process, told, stopping)
            with _variables(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
                gateway = launch_gateway(conf)
        except (OSError, Py4JError) as error:
            end(process, 0)
            raise SparkUnavailable(f"the JVM's gateway does not answer: {error}") from error
        except BaseException:
            end(process, 0)
            raise
    gateway.proc = process
    return gateway


@contextlib.contextmanager
def killed_when(stopping: Callable[[], bool], process: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """While inside, the JVM is killed as soon as `stopping` says so: a call into it that lasts then ends with an error.
    Its context may try to reach a master for a minute."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if stopping():
                if process is not None:
                    process.kill()  # the kernel then kills the JVM
                return

    watcher = threading.Thread(target=watch, name="stop of the start", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def end(process: subprocess.Popen[bytes], exit_s: float) -> None:
    """Let the JVM end, for which it has `exit_s`; then it is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(exit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel then kills the JVM
        process.wait()


def properties(conf: SparkConf) -> str:
    """As a file of Java's: everybody on this machine may read a command line, and one setting is the secret."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.getAll())


def _escaped(text: str) -> str:
    return re.sub(r"[\\:=#!\s]", lambda found: _ESCAPES.get(found[0], f"\\{found[0]}"), text)


def _start(settings: Path, environment: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """A session of its own: Ctrl-C, a hang-up or a service manager's signal to the whole group would otherwise take the
    JVM away under the batch in flight."""
    env = {**os.environ, "SPARK_CONNECT_MODE": "0", **environment}
    command = [str(Path(env["SPARK_HOME"]) / "bin" / "spark-submit")]
    command += ["--properties-file", str(settings), "--load-spark-defaults"]
    command += shlex.split(env.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=env,
        start_new_session=True,
    )


def _connection(process: subprocess.Popen[bytes], told: Path, stopping: Callable[[], bool]) -> tuple[int, str]:
    """(port, secret) of the gateway, which the JVM renames into place when it is complete."""
    until = time.monotonic() + START_S
    while not told.exists():
        if stopping():
            raise Stopped("the JVM was about to start")
        if process.poll() is not None:
            raise SparkUnavailable(f"the JVM ended with exit code {process.returncode} before its gateway ran")
        if time.monotonic() > until:
            raise SparkUnavailable(f"the JVM's gateway does not run after {START_S:.0f} s")
        time.sleep(LOOK_S)
    with told.open("rb") as info:
        return read_int(info), UTF8Deserializer().loads(info)


@contextlib.contextmanager
def _variables(**given: str) -> Iterator[None]:
    """Environment variables of this process while inside."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
