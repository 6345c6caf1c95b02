"""The Spark session of the drainer, with the settings that were measured to pay, and a JVM that keeps quiet."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pyspark
from binlog.log import get_logger
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from drainer.progress import Stopped
from drainer.spark import node, register
from drainer.spark.archive import archive_of
from drainer.spark.errors import JVM_ENDED, SparkUnavailable, reason_of, text_of
from drainer.spark.launch import end, killed_when, launch
from drainer.spark.master import check_master

_log = get_logger(__name__)

JAVA_MAJOR_MIN = 17
JVM_EXIT_S = 10
# The path of a socket holds at most 107 bytes, of which 43 come behind the folder's.
SOCKET_FOLDER_BYTES_MAX = 64
INSTALL_JAVA = "install a Java runtime 17 or later (Debian: apt-get install openjdk-17-jre-headless)"

SETTINGS: Mapping[str, str] = {
    "spark.app.name": "tidb-binlog drainer",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One plan for every batch: nothing to adapt, and adapting costs a job's round trip.
    "spark.sql.adaptive.enabled": "false",
    # Offset and commit logs without the rename dance of the default: 65 to 14 ms each. What survives a power cut does
    # not matter, the destination's position is the truth (correctness rule 17).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.stopTimeout": "30s",
    # The reader waits for news itself, in its coordinator.
    "spark.sql.streaming.pollingDelay": "1ms",
    # Workers are forked from a process that has everything imported and frozen (drainer.spark.worker).
    "spark.python.daemon.module": "drainer.spark.worker",
    "spark.python.worker.reuse": "true",
    # 0.15 to 0.08 s a trigger together with the above.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# The JVM of a local master moves bytes between Python processes and plans small jobs: the quick compiler is enough.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy/MM/dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
# Said at every start or stop, and nothing to be done about it.
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.dag.name = org.apache.spark.scheduler.DAGScheduler
logger.dag.level = error
"""


def check_java() -> str:
    """The version of the Java that Spark will use. Raises SparkUnavailable, saying what to install, where there is no
    usable one."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise SparkUnavailable(f"Spark needs Java and there is none {where}: {INSTALL_JAVA}")
    version, modules = java_of(Path(java))
    if not version or int(version.split(".")[0].split("-")[0]) < JAVA_MAJOR_MIN:
        raise SparkUnavailable(f"{java} is Java {version or 'before 9'}: {INSTALL_JAVA}")
    if "jdk.incubator.vector" not in modules:
        raise SparkUnavailable(f"{java} lacks the module jdk.incubator.vector: {INSTALL_JAVA}")
    return version


def java_of(java: Path) -> tuple[str, str]:
    """(version, names of its modules); ("", "") where it does not say. A JVM that only answers this takes as long as
    half of the drainer's imports, so the file beside it is asked first."""
    release = java.resolve().parent.parent / "release"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        said = dict(re.findall(r'^(JAVA_VERSION|MODULES)="(.*)"$', release.read_text(), re.MULTILINE))
        if len(said) == 2:
            return said["JAVA_VERSION"], said["MODULES"]
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False).stdout
    version = next((line.partition("@")[2] for line in modules.splitlines() if line.startswith("java.base@")), "")
    return version, modules


def _for_the_jvm() -> dict[str, str]:
    """Variables for the JVM's start.

    A Python of the driver that is not there keeps Spark from looking for data sources in every installed package, which
    takes two processes and a second of CPU; ours is registered by hand. SPARK_HOME and the launcher's options spare a
    Python and half of a first, short-lived JVM.
    """
    return {
        "PYSPARK_DRIVER_PYTHON": "no-look-up-of-data-sources",
        "SPARK_HOME": os.environ.get("SPARK_HOME", str(Path(pyspark.__file__).parent)),
        "SPARK_LAUNCHER_OPTS": f"{os.environ.get('SPARK_LAUNCHER_OPTS', '')} {JAVA_OPTIONS}".strip(),
    }


def start_session(
    *,
    master: str,
    output: Path,
    conf: Mapping[str, str],
    archive: bool = True,
    stopping: Callable[[], bool] = lambda: False,
) -> SparkSession:
    """A session with the source "binlog" registered. What the JVM and its workers print goes to `output`.

    `conf` adds to SETTINGS or overrides them; `archive`: use the classes of drainer.spark.archive where they are.
    Raises SparkUnavailable, and Stopped soon after `stopping` says so, at whatever moment of the start.
    """
    check_master(conf.get("spark.master", master))
    classes = archive_of(check_java())
    # Nothing of ours goes through pandas; pyspark only checks that it is there.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    # Workers run `python3` from PATH unless told otherwise; Spark itself reads its setting in spark-submit alone.
    os.environ["PYSPARK_PYTHON"] = python_of(conf)
    output.parent.mkdir(parents=True, exist_ok=True)
    log4j = output.with_name("log4j2.properties")
    log4j.write_text(_LOG4J)
    settings = dict(SETTINGS)
    settings["spark.master"] = with_retries(master)
    if not master.startswith("local"):
        del settings["spark.driver.bindAddress"], settings["spark.driver.host"]
        settings.update(node.settings())
    else:
        settings["spark.local.dir"] = tempfile.gettempdir()
    if len(os.fsencode(tempfile.gettempdir())) > SOCKET_FOLDER_BYTES_MAX:
        settings["spark.python.unix.domain.socket.enabled"] = "false"
    settings.update(conf)
    if not master.startswith("local") and settings.get("spark.authenticate", "false").lower() != "true":
        _log.warning("who can reach Spark's ports can run code in it: spark.authenticate is off", master=master)
    more = conf.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = java_options(log4j, classes if archive else None, more)
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with output.open("ab") as sink:
        return _started(spark_conf, sink, output, stopping)


def _started(conf: SparkConf, sink: IO[bytes], output: Path, stopping: Callable[[], bool]) -> SparkSession:
    gateway, begin = None, output.stat().st_size
    try:
        gateway = launch(conf, _for_the_jvm(), sink, stopping)
        with killed_when(stopping, getattr(gateway, "proc", None)):
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
            register(session)
            return session
    except Stopped:
        raise
    except Exception as error:  # pyspark fails in many ways when its JVM does not do what it expects
        _end_jvm(gateway, 0 if stopping() else JVM_EXIT_S)
        if stopping():
            raise Stopped("Spark was about to start") from error
        why = reason_of(text_of(error))
        if why == JVM_ENDED:
            why = node.last_error(output, begin) or why
        raise SparkUnavailable(f"Spark did not start, see {output}: {why}") from error


def python_of(conf: Mapping[str, str]) -> str:
    """The interpreter of workers, on every machine that has any: Spark's own setting, its variable, or ours."""
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def java_options(log4j: Path, classes: Path | None, more: str) -> str:
    """The JVM's command line; `classes`: an archive, used if it is there; `more`: the user's."""
    java = f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log4j.absolute().as_uri()}"
    java += f" -Djava.io.tmpdir={tempfile.gettempdir()}"
    if classes is not None and classes.exists():
        java += f' -XX:SharedArchiveFile="{classes}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return f"{java} {more}".strip()


def with_retries(master: str) -> str:
    """`local[N]` retries no task, so one dead worker would fail the query: make it `local[N,4]`."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and master.endswith("]") and "," not in master:
        return f"{master[:-1]},4]"
    return master


def stop_session(session: SparkSession, *, exit_s: float = JVM_EXIT_S) -> None:
    """Stop Spark and let its JVM end, for which it has `exit_s`."""
    gateway = session.sparkContext._gateway
    session.stop()
    _end_jvm(gateway, exit_s)


def _end_jvm(gateway: Any, exit_s: float) -> None:
    if gateway is not None:
        with contextlib.suppress(OSError, Py4JError):  # it may be gone already
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            end(process, exit_s)
    SparkContext._gateway = SparkContext._jvm = None
