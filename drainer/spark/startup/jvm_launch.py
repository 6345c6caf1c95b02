"""Starts the JVM under drainer.spark.startup.supervisor and connects to its gateway.

pyspark's own launch makes the JVM a child of the drainer that nobody ends when the drainer is killed while it starts.
Here the process is ours; pyspark is told of the gateway as spark-submit tells it, by port and secret. The JVM comes up
while pyspark is imported: what starts it here does without that.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from drainer.apply.progress import Stopped
from drainer.spark.startup import supervisor
from drainer.spark.startup.java import archive_of, check_java, remove_leftovers
from drainer.spark.startup.master import check_master
from drainer.spark.startup.spark_settings import LOG4J, environment, python_of, settings_for
from drainer.spark.startup.unavailable import SparkUnavailable

if TYPE_CHECKING:
    from pyspark import SparkConf

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
LOOK_S = 0.02
START_S = 300.0
TOLD = "connection"


@dataclass(frozen=True, slots=True)
class Jvm:
    """A JVM that has been started. `process`: its supervisor, which ends with it; None where somebody else's is used.
    `folder`: where it will say how to connect to its gateway. `output`: what it and its workers print."""

    settings: Mapping[str, str]
    output: Path
    folder: Path
    process: subprocess.Popen[bytes] | None
    begin: int = 0  # of what this one prints

    def end(self, exit_s: float = 0) -> None:
        """Let it end, for which it has `exit_s`."""
        if self.process is not None:
            end(self.process, exit_s)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_jvm(*, master: str, output: Path, conf: Mapping[str, str], archive: bool = True) -> Jvm:
    """Not waited for. `conf` adds to our settings or overrides them; `archive`: use the classes of
    drainer.spark.startup.class_archive where they are. Raises SparkUnavailable where there is no Java or no master."""
    check_master(conf.get("spark.master", master))
    classes = archive_of(check_java())
    remove_leftovers(classes)
    # Workers run `python3` from PATH unless told otherwise; Spark itself reads its setting in spark-submit alone.
    os.environ["PYSPARK_PYTHON"] = python_of(conf)
    output.parent.mkdir(parents=True, exist_ok=True)
    log4j = output.with_name("log4j2.properties")
    log4j.write_text(LOG4J)
    settings = settings_for(master, conf, log4j=log4j, classes=classes if archive else None)
    return start(settings, environment(), output)


def start(settings: Mapping[str, str], variables: Mapping[str, str], output: Path) -> Jvm:
    """`variables`: additions to the environment of the JVM and its workers."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-"))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return Jvm(settings, output, folder, None)  # somebody else's JVM
    with output.open("ab") as sink:
        begin = sink.tell()
        given = folder / "spark.conf"
        given.write_text(properties(settings), encoding="utf-8")
        told = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / TOLD)}
        return Jvm(settings, output, folder, _start(given, {**variables, **told}, sink), begin)


def connect(jvm: Jvm, conf: SparkConf, stopping: Callable[[], bool] = lambda: False) -> Any:
    """py4j's gateway to the JVM; its `proc` is the supervisor. Raises SparkUnavailable, and Stopped as soon as
    `stopping` says so; then the JVM has ended."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.java_gateway import launch_gateway

    try:
        given = {} if jvm.process is None else _connection(jvm.process, jvm.folder / TOLD, stopping)
        with _variables(**given):
            gateway = launch_gateway(conf)
    except (OSError, Py4JError) as error:
        jvm.end()
        raise SparkUnavailable(f"the JVM's gateway does not answer: {error}") from error
    except BaseException:
        jvm.end()
        raise
    shutil.rmtree(jvm.folder, ignore_errors=True)
    gateway.proc = jvm.process
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


def properties(settings: Mapping[str, str]) -> str:
    """As a file of Java's: everybody on this machine may read a command line, and one setting is the secret."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    return re.sub(r"[\\:=#!\s]", lambda found: _ESCAPES.get(found[0], f"\\{found[0]}"), text)


def _start(given: Path, variables: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """A session of its own: Ctrl-C, a hang-up or a service manager's signal to the whole group would otherwise take the
    JVM away under the batch in flight."""
    env = {**os.environ, "SPARK_CONNECT_MODE": "0", **variables}
    command = [str(Path(env["SPARK_HOME"]) / "bin" / "spark-submit")]
    command += ["--properties-file", str(given), "--load-spark-defaults"]
    command += shlex.split(env.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=env,
        start_new_session=True,
    )


def _connection(process: subprocess.Popen[bytes], told: Path, stopping: Callable[[], bool]) -> dict[str, str]:
    """Port and secret of the gateway as pyspark's variables; the JVM renames their file into place when it is whole."""
    from pyspark.serializers import UTF8Deserializer, read_int

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
        port, secret = read_int(info), UTF8Deserializer().loads(info)
    return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}


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
