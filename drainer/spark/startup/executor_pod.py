"""The program of an executor's pod: becomes the JVM of a Spark executor.

    python -m drainer.spark.startup.executor_pod executor

Spark's driver makes the pod (master k8s://…) and describes the executor by environment variables. In Spark's own image
a shell script converts them to a command line; this program does so in the drainer's image.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from drainer.spark.startup.java import SparkUnavailable, java_program, spark_home

MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# The argument of the JVM's main class, and the variable of Spark with its value.
ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
MEMORY = "SPARK_EXECUTOR_MEMORY"
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def command(argv: list[str], environment: Mapping[str, str], java: str, spark: Path) -> list[str]:
    """Return the JVM's command line; `spark`: the folder that contains `jars`. Raises SparkUnavailable if the arguments
    or variables are not those of an executor's pod."""
    if argv != ["executor"]:
        raise SparkUnavailable(
            f"the argument is {' '.join(argv)!r}, not 'executor': only Spark's driver starts this program"
        )
    lacking = [name for name in (*ARGUMENTS.values(), MEMORY) if not environment.get(name)]
    if lacking:
        raise SparkUnavailable(f"{', '.join(lacking)} not set: only Spark's driver starts this program")
    numbered = {int(found[1]): value for name, value in environment.items() if (found := _OPTION.fullmatch(name))}
    classes = [str(spark / "jars" / "*")]
    for name in ("SPARK_CONF_DIR", "SPARK_EXTRA_CLASSPATH"):
        if environment.get(name):
            classes.append(environment[name])
    memory = environment[MEMORY]
    return [
        java,
        *(numbered[number] for number in sorted(numbered)),
        *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", ":".join(classes), MAIN),
        *(word for name, variable in ARGUMENTS.items() for word in (name, environment[variable])),
    ]


def main(argv: list[str]) -> NoReturn:
    """Become the JVM. If that fails, print the reason to standard error and return exit code 1."""
    try:
        java = str(java_program())
        line = command(argv, os.environ, java, spark_home())
    except SparkUnavailable as error:
        sys.exit(str(error))
    os.execv(java, line)


if __name__ == "__main__":
    main(sys.argv[1:])
