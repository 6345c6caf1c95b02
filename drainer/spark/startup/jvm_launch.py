"""Starts the JVM under drainer.spark.startup.supervisor and connects to its py4j gateway; opens the Spark session in a
thread while the daemon connects to etcd and opens its destination.

With pyspark's own launch the JVM survives a drainer that is killed during the start. Here the drainer starts the
process and gives pyspark the gateway's port and secret, as spark-submit does. The JVM needs several seconds, mostly on
one processor, so it is started first, before any slow import; this module does not import pyspark.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from binlog.runtime.log import get_logger

from drainer.apply.progress import Stopped
from drainer.spark.startup import fork_client, node_requirements, supervisor
from drainer.spark.startup.java import MAKING, SparkUnavailable, archive_of, check_java, java_options, lean_home
from drainer.temporary_files import check_data_dir, sweep, temporary_folder

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from drainer.config import Config

CONNECT_S = 3.0
STANDALONE = "spark://"
KUBERNETES = "k8s://"
KUBERNETES_PORTS = {"https": 443, "http": 80}


def check_master(master: str, *, wait_s: float = CONNECT_S) -> None:
    """Raise SparkUnavailable if no master of the list accepts a connection within `wait_s` seconds in total, or if the
    text is invalid. Only standalone and Kubernetes masters are checked. Spark itself tries for a minute."""
    addresses = addresses_of(master)
    until_s = time.monotonic() + wait_s
    refusals = []
    for host, port in addresses:
        try:
            timeout_s = max(0.1, (until_s - time.monotonic()) / len(addresses))
            with socket.create_connection((host, port), timeout=timeout_s):
                return
        except OSError as error:
            refusals.append(f"{host}:{port}: {error.strerror or error or 'no answer'}")
    if refusals:
        raise SparkUnavailable(
            f"no Spark master answers at {master} (-master or [spark] master): {'; '.join(refusals)}"
        )


def addresses_of(master: str) -> list[tuple[str, int]]:
    """Return (host, port) of each master; nothing for masters without an address. Raises SparkUnavailable for an
    invalid address.
    """
    if master.startswith(STANDALONE):
        return [_address(master, text) for text in master.removeprefix(STANDALONE).split(",")]
    if master.startswith(KUBERNETES):
        scheme, slashes, rest = master.removeprefix(KUBERNETES).partition("://")
        text = (rest if slashes else scheme).partition("/")[0]
        return [_address(master, text, KUBERNETES_PORTS.get(scheme, 443) if slashes else 443)]
    return []


def _address(master: str, text: str, port: int = 0) -> tuple[str, int]:
    host, colon, number = text.rpartition(":")
    if text.endswith("]") or not colon:  # no port, perhaps after an IPv6 address
        host, number = text, str(port or "")
    if not host or not number.isdigit() or not 0 < int(number) < 1 << 16:
        raise SparkUnavailable(
            f"-master or [spark] master: {master}: {text!r} is not host:port; a list is spark://a:7077,b:7077"
        )
    return host.strip("[]"), int(number)


_log = get_logger(__name__)

# The path of a socket has at most 107 bytes; 43 of them follow the folder's path.
SOCKET_FOLDER_BYTES_MAX = 64

# Chosen by measurement.
SETTINGS: Mapping[str, str] = {
    "spark.app.name": "tidb-binlog drainer",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # All batches have the same plan, and adaptive execution costs a round trip per job.
    "spark.sql.adaptive.enabled": "false",
    # Offset and commit logs without the temporary file and rename of the default: 65 to 14 ms each. Their loss in a
    # power failure does no harm, because only the destination's position counts (correctness rule 17).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Without Hadoop's checksum files. Hadoop starts a `chmod` for every file that it creates.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.stopTimeout": "30s",
    # The reader's latestOffset waits for new binlogs itself.
    "spark.sql.streaming.pollingDelay": "1ms",
    # Workers are forked from a process that has everything imported and frozen (drainer.spark.startup.worker_imports).
    "spark.python.daemon.module": "drainer.spark.startup.worker_imports",
    "spark.python.worker.reuse": "true",
    # On a busy machine JVM and worker may need longer than the default of 15 s to connect, and the task would fail.
    "spark.python.authenticate.socketTimeout": "120s",
    # 0.15 to 0.08 s a trigger together with the above.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy/MM/dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
# Harmless messages of every start or stop.
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.dag.name = org.apache.spark.scheduler.DAGScheduler
logger.dag.level = error
"""


def settings_for(master: str, conf: Mapping[str, str], *, log4j: Path, classes: Path | None) -> dict[str, str]:
    """Return all settings of a session; `conf`: the user's, which override the drainer's."""
    settings = dict(SETTINGS)
    settings["spark.master"] = with_retries(master)
    if not master.startswith("local"):
        del settings["spark.driver.bindAddress"], settings["spark.driver.host"]
        settings.update(node_requirements.settings())
        pod = os.environ.get("POD_NAME")
        if pod and master.startswith(KUBERNETES):  # which deletes the executors with their owner, however it ends
            settings["spark.kubernetes.driver.pod.name"] = pod
    else:
        settings["spark.local.dir"] = tempfile.gettempdir()
    if len(os.fsencode(tempfile.gettempdir())) > SOCKET_FOLDER_BYTES_MAX:
        settings["spark.python.unix.domain.socket.enabled"] = "false"
    settings.update(conf)
    if not master.startswith("local") and settings.get("spark.authenticate", "false").lower() != "true":
        _log.warning(
            "spark.authenticate is off: any host that can reach Spark's ports can run code in it", master=master
        )
    more = conf.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = java_options(log4j, classes, more)
    return settings


def python_of(conf: Mapping[str, str]) -> str:
    """Path of the workers' Python on every node: spark.pyspark.python, PYSPARK_PYTHON, or this interpreter."""
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def with_retries(master: str) -> str:
    """`local[N]` retries no task, so one dead worker would fail the query: make it `local[N,4]`."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and master.endswith("]") and "," not in master:
        return f"{master[:-1]},4]"
    return master


def environment() -> dict[str, str]:
    """Environment variables for the start of the JVM.

    A driver Python that does not exist keeps Spark from searching every installed package for data sources, which takes
    two processes and a second of CPU; the drainer registers its source itself. SPARK_HOME saves a Python process.
    """
    return {"PYSPARK_DRIVER_PYTHON": "no-look-up-of-data-sources", "SPARK_HOME": str(lean_home())}


# Decide whether Spark's Python processes are forked from one that has imported everything (fork_server.py), and prepare
# it.
SOCKET = "fork.sock"
PYTHON = "python"
SOCKET_PATH_BYTES_MAX = 107
SERVER = "drainer.spark.startup.fork_server"


def forking(folder: Path, master: str, conf: Mapping[str, str]) -> Sequence[str]:
    """Prepare the fork server's files in `folder`; PYTHON is the program that Spark then runs instead of Python. Return
    the server's command line; empty if Spark must run Python itself: on other machines, with another interpreter, and
    if programs in `folder` cannot be executed or its path is too long for a socket."""
    if not (sys.platform == "linux" and master.startswith("local") and python_of(conf) == sys.executable):
        return ()
    python, path = folder / PYTHON, folder / SOCKET
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        return ()
    words = (sys.executable, "-I", "-S", fork_client.__file__, str(path))
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    if not os.access(python, os.X_OK):  # a file system that is mounted without permission to execute
        return ()
    return sys.executable, "-m", SERVER, str(path)


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
    sweep(classes.parent, MAKING)  # files of about 150 MB that a killed creation of the archive left
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
        server = forking(folder, settings.get("spark.master", ""), settings) if forks else ()
        process = _start(given, {**variables, **connection}, sink, server)
        return Jvm(settings, output, folder, process, begin, str(folder / PYTHON) if server else "")


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


class Opening:
    """Starts in the constructor. `session` waits for the result; `close` ends it at any stage. `finish_warm_up`, known
    after `session`, waits for the executors of a cluster (WarmUp.finish), at most until a stop."""

    finish_warm_up: Callable[[], None]

    def __init__(
        self, *, master: str, output: Path, conf: Mapping[str, str], stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """`stopping`: returns True when the session is no longer needed. `before_close`: ends other users of the
        session."""
        self.before_close: Callable[[], None] = lambda: None
        self._asked_to_stop = stopping
        self._closed = threading.Event()
        self._made: Future[SparkSession] = Future()
        self._jvm: Jvm | None = None
        self._thread = threading.Thread(target=self._run, args=(master, output, conf), name="Spark start", daemon=True)
        self._thread.start()

    def session(self) -> SparkSession:
        """Wait for the session. Raises SparkUnavailable, and Stopped after `stopping` or `close`."""
        return self._made.result()

    def node_lacks(self) -> str | None:
        """Return what a node of the cluster lacks to run tasks, as far as Spark's log of this session shows it."""
        from drainer.spark.startup.node_requirements import lacking_in

        return None if self._jvm is None else lacking_in(self._jvm.output, self._jvm.begin)

    def close(self) -> None:
        """Stop the session within some seconds, or kill a JVM that is still starting. May be called again."""
        self._closed.set()
        self._thread.join()
        self.before_close()
        made = self._made
        if made.exception() is None:
            from drainer.spark.startup.session import stop_session

            self._made = Future()
            self._made.set_exception(Stopped("Spark has been stopped"))
            stop_session(made.result())

    def _stopping(self) -> bool:
        return self._closed.is_set() or self._asked_to_stop()

    def _run(self, master: str, output: Path, conf: Mapping[str, str]) -> None:
        try:
            self._jvm = start_jvm(master=master, output=output, conf=conf)
            self._made.set_result(self._session(self._jvm))
        except BaseException as error:  # noqa: BLE001  raised by `session`
            self._made.set_exception(error)

    def _session(self, jvm: Jvm) -> SparkSession:
        try:
            # Imports that take more than half a second, while the JVM starts.
            from drainer.spark import query  # noqa: F401
            from drainer.spark.source import planner  # noqa: F401
            from drainer.spark.startup.session import open_session
            from drainer.spark.startup.warmup import WarmUp
        except BaseException:
            jvm.end()
            raise
        session = open_session(jvm, self._stopping)
        warm_up = WarmUp(session, max(1, session.sparkContext.defaultParallelism))
        self.finish_warm_up = partial(warm_up.finish, self._stopping)
        return session


@contextlib.contextmanager
def opened(config: Config, log: str, stopping: Callable[[], bool]) -> Iterator[Opening]:
    """Start Spark, whose log is `log` in data-dir, and use a folder for all temporary files of this process while
    inside. Raises ConfigError."""
    check_data_dir(config.data_dir)
    spark, output = config.spark, config.data_dir / log
    with (
        temporary_folder(),
        contextlib.closing(
            Opening(master=spark.master, output=output, conf=config.spark_settings(), stopping=stopping)
        ) as opening,
    ):
        yield opening
