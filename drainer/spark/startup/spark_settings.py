"""Spark settings of the drainer, chosen by measurement, and its log4j configuration."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from binlog.runtime.log import get_logger

from drainer.spark.startup import node_requirements
from drainer.spark.startup.java import java_options
from drainer.spark.startup.master import KUBERNETES
from drainer.spark.startup.spark_folder import lean_home

_log = get_logger(__name__)

# The path of a socket has at most 107 bytes; 43 of them follow the folder's path.
SOCKET_FOLDER_BYTES_MAX = 64

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
    # Workers are forked from a process that has everything imported and frozen (drainer.spark.startup.worker_daemon).
    "spark.python.daemon.module": "drainer.spark.startup.worker_daemon",
    "spark.python.worker.reuse": "true",
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
        settings.update(_of_pods(master))
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


def _of_pods(master: str) -> dict[str, str]:
    """Return the settings of a driver in a pod. Kubernetes deletes the executors with the pod that owns them, however
    the pod ends.
    """
    pod = os.environ.get("POD_NAME")
    return {"spark.kubernetes.driver.pod.name": pod} if pod and master.startswith(KUBERNETES) else {}


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
