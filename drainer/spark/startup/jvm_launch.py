"""Starts the JVM under drainer.spark.startup.supervisor and connects to its py4j gateway.

With pyspark's own launch the JVM survives a drainer that is killed during the start. Here the drainer starts the
process and gives pyspark the gateway's port and secret, as spark-submit does. The JVM starts while pyspark is imported,
so this module does not import pyspark.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from drainer.apply.progress import Stopped
from drainer.spark.startup import fork_client, supervisor
from drainer.spark.startup.java import archive_of, check_java, remove_leftovers
from drainer.spark.startup.master import check_master
from drainer.spark.startup.spark_settings import LOG4J, environment, python_of, settings_for
from drainer.spark.startup.unavailable import SparkUnavailable

# Decide whether Spark's Python processes are forked from one that has imported everything (fork_server.py), and prepare
# it.
SOCKET = "fork.sock"
PYTHON = "python"
SOCKET_PATH_BYTES_MAX = 107
SERVER = "drainer.spark.startup.fork_server"


@dataclass(frozen=True, slots=True)
class Forking:
    """`python`: the program that Spark runs instead of Python; `server`: the command line of the fork server."""

    python: str
    server: tuple[str, ...]


def forking(folder: Path, master: str, conf: Mapping[str, str]) -> Forking | None:
    """Prepare the fork server's files in `folder`. Return None if Spark must run Python itself: on other machines, with
    another interpreter, and if programs in `folder` cannot be executed or its path is too long for a socket."""
    if not (sys.platform == "linux" and master.startswith("local") and python_of(conf) == sys.executable):
        return None
    python, path = folder / PYTHON, folder / SOCKET
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        return None
    words = (sys.executable, "-I", "-S", fork_client.__file__, str(path))
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    if not os.access(python, os.X_OK):  # a file system that is mounted without permission to execute
        return None
    return Forking(str(python), (sys.executable, "-m", SERVER, str(path)))


if TYPE_CHECKING:
    from pyspark import SparkConf

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
POLL_S = 0.02
START_S = 300.0
CONNECTION_FILE = "connection"
SETTINGS_FILE = "spark.conf"


@dataclass(frozen=True, slots=True)
class Jvm:
    """A started JVM. `process`: its supervisor; None for an existing JVM (PYSPARK_GATEWAY_PORT). `folder`: where it
    writes its gateway's port and secret. `output`: log of the JVM and its workers. `python`: the program to run instead
    of Python; empty: Spark's own choice."""

    settings: Mapping[str, str]
    output: Path
    folder: Path
    process: subprocess.Popen[bytes] | None
    begin: int = 0  # offset in `output` at which its log begins
    python: str = ""

    def end(self, exit_s: float = 0) -> None:
        """End the JVM; it is killed after `exit_s` seconds."""
        if self.process is not None:
            end(self.process, exit_s)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_jvm(*, master: str, output: Path, conf: Mapping[str, str], archive: bool = True) -> Jvm:
    """Start a JVM without waiting for it. `conf` overrides the drainer's settings; `archive`: use the class archive if
    it exists. Raises SparkUnavailable if there is no Java or no master."""
    check_master(conf.get("spark.master", master))
    classes = archive_of(check_java())
    remove_leftovers(classes)
    # Workers run `python3` from PATH unless this variable is set; Spark reads its own setting only in spark-submit.
    os.environ["PYSPARK_PYTHON"] = python_of(conf)
    output.parent.mkdir(parents=True, exist_ok=True)
    log4j = output.with_name("log4j2.properties")
    log4j.write_text(LOG4J)
    settings = settings_for(master, conf, log4j=log4j, classes=classes if archive else None)
    return start(settings, environment(), output, forks=True)


def start(settings: Mapping[str, str], variables: Mapping[str, str], output: Path, *, forks: bool = False) -> Jvm:
    """`variables`: additions to the environment of the JVM and its workers; `forks`: use a fork server for Spark's
    Python processes, if possible."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-"))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return Jvm(settings, output, folder, None)  # an existing JVM
    with output.open("ab") as sink:
        begin = sink.tell()
        given = folder / SETTINGS_FILE
        given.write_text(properties(settings), encoding="utf-8")
        connection = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / CONNECTION_FILE)}
        found = forking(folder, settings.get("spark.master", ""), settings) if forks else None
        process = _start(given, {**variables, **connection}, sink, found.server if found else ())
        return Jvm(settings, output, folder, process, begin, found.python if found else "")


def connect(jvm: Jvm, conf: SparkConf, stopping: Callable[[], bool] = lambda: False) -> Any:
    """Return py4j's gateway to the JVM. Its `proc` is the supervisor; the caller removes its `folder` at the end.
    Raises SparkUnavailable, and Stopped as soon as `stopping` returns True; the JVM has ended then."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.java_gateway import launch_gateway

    try:
        given = {} if jvm.process is None else _connection(jvm.process, jvm.folder / CONNECTION_FILE, stopping)
        with _variables(**given):
            gateway = launch_gateway(conf)
    except (OSError, Py4JError) as error:
        jvm.end()
        raise SparkUnavailable(f"the JVM's py4j gateway does not answer: {error}") from error
    except BaseException:
        jvm.end()
        raise
    for secret in (CONNECTION_FILE, SETTINGS_FILE):
        (jvm.folder / secret).unlink(missing_ok=True)
    gateway.proc, gateway.folder = jvm.process, jvm.folder
    return gateway


@contextlib.contextmanager
def killed_when(stopping: Callable[[], bool], process: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """While inside, kill the JVM as soon as `stopping` returns True, so that a blocking call into it fails: Spark may
    try to reach a master for a minute."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            if stopping():
                if process is not None:
                    process.kill()  # the kernel then kills the JVM
                return

    watcher = threading.Thread(target=watch, name="Spark start watcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def end(process: subprocess.Popen[bytes], exit_s: float) -> None:
    """Ask the JVM to end; kill it after `exit_s` seconds."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(exit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel then kills the JVM
        process.wait()


def properties(settings: Mapping[str, str]) -> str:
    """Settings as a Java properties file; not as arguments, because one is a secret and command lines are public."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    return re.sub(r"[\\:=#!\s]", lambda found: _ESCAPES.get(found[0], f"\\{found[0]}"), text)


def _start(
    given: Path, variables: Mapping[str, str], output: IO[bytes], helper: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own, so that a signal to the drainer's process group does not end the
    JVM during a batch."""
    env = {**os.environ, "SPARK_CONNECT_MODE": "0", **variables}
    command = [str(Path(env["SPARK_HOME"]) / "bin" / "spark-submit")]
    command += ["--properties-file", str(given), "--load-spark-defaults"]
    command += shlex.split(env.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(len(helper)), *helper, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=env,
        start_new_session=True,
    )


def _connection(process: subprocess.Popen[bytes], file: Path, stopping: Callable[[], bool]) -> dict[str, str]:
    """Port and secret of the gateway as pyspark's variables, from the file that the JVM renames into place."""
    from pyspark.serializers import UTF8Deserializer, read_int

    until = time.monotonic() + START_S
    while not file.exists():
        if stopping():
            raise Stopped("stopped while the JVM was starting")
        if process.poll() is not None:
            raise SparkUnavailable(f"the JVM ended with exit code {process.returncode} before its py4j gateway was up")
        if time.monotonic() > until:
            raise SparkUnavailable(f"the JVM's py4j gateway is not up after {START_S:.0f} s")
        time.sleep(POLL_S)
    with file.open("rb") as info:
        port, secret = read_int(info), UTF8Deserializer().loads(info)
    return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}


@contextlib.contextmanager
def _variables(**given: str) -> Iterator[None]:
    """Set environment variables of this process while inside."""
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
