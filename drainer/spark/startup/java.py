"""Finds the Java that Spark will use; its options, and the file of the class archive.

Neither this module nor its imports need pyspark, because the JVM is started before pyspark is imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from drainer.spark.startup.spark_folder import cache_folder, home_mark
from drainer.spark.startup.unavailable import SparkUnavailable
from drainer.temporary_files import sweep

JAVA_MAJOR_MIN = 17
MAKING = "making-"
INSTALL_JAVA = "install a Java runtime 17 or later (Debian: apt-get install openjdk-17-jre-headless)"

# The JVM of a local master moves bytes between Python processes and plans small jobs: the C1 compiler is enough.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_program() -> Path:
    """The `java` of JAVA_HOME, or of PATH. SparkUnavailable, with what to install, if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise SparkUnavailable(f"Spark needs Java and found none {where}: {INSTALL_JAVA}")
    return Path(java)


def check_java() -> str:
    """The version of the Java that Spark will use. SparkUnavailable, with what to install, if there is no usable
    one."""
    java = java_program()
    version, modules = java_of(java)
    if not version or int(version.split(".")[0].split("-")[0]) < JAVA_MAJOR_MIN:
        raise SparkUnavailable(f"{java} is Java {version or 'before 9'}: {INSTALL_JAVA}")
    if "jdk.incubator.vector" not in modules:
        raise SparkUnavailable(f"{java} lacks the module jdk.incubator.vector: {INSTALL_JAVA}")
    return version


def java_of(java: Path) -> tuple[str, str]:
    """(version, names of its modules); ("", "") if unknown."""
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False).stdout
    version = next((line.partition("@")[2] for line in modules.splitlines() if line.startswith("java.base@")), "")
    return version, modules


def archive_of(java_version: str) -> Path:
    """Path of the class archive for this Spark and Java (drainer.spark.startup.class_archive creates it)."""
    name = f"spark-{metadata.version('pyspark')}-{home_mark()}-java-{java_version}.jsa"
    return cache_folder() / name


def remove_leftovers(place: Path) -> None:
    """Remove files of about 150 MB that a killed creation of the archive at `place` left."""
    sweep(place.parent, MAKING)


def java_options(log4j: Path, classes: Path | None, more: str) -> str:
    """Options of the JVM; `classes`: the class archive, used if it exists; `more`: options of the user."""
    java = f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log4j.absolute().as_uri()}"
    java += f" -Djava.io.tmpdir={tempfile.gettempdir()}"
    if classes is not None and classes.exists():
        java += f' -XX:SharedArchiveFile="{classes}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return f"{java} {more}".strip()
