"""The Java that Spark will use, its options, and the archive of classes that halves the CPU of its start.

Nothing here or in what it imports needs pyspark: the JVM is started before that is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
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

# The JVM of a local master moves bytes between Python processes and plans small jobs: the quick compiler is enough.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


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


def archive_of(java_version: str) -> Path:
    """Where the archive for this Spark and this Java is, or would be (drainer.spark.startup.class_archive makes it)."""
    name = f"spark-{metadata.version('pyspark')}-{home_mark()}-java-{java_version}.jsa"
    return cache_folder() / name


def remove_leftovers(place: Path) -> None:
    """What a making of the archive at `place` left, about 150 MB, when it was killed."""
    sweep(place.parent, MAKING)


def java_options(log4j: Path, classes: Path | None, more: str) -> str:
    """The JVM's command line; `classes`: an archive, used if it is there; `more`: the user's."""
    java = f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log4j.absolute().as_uri()}"
    java += f" -Djava.io.tmpdir={tempfile.gettempdir()}"
    if classes is not None and classes.exists():
        java += f' -XX:SharedArchiveFile="{classes}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return f"{java} {more}".strip()
