"""Finds the Spark and the Java that a start will use: Spark's home directory, Java's options, and the file of the class
archive.

Neither this module nor its imports need pyspark, because the JVM is started before pyspark is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from binlog.errors import BinlogError


class SparkUnavailable(BinlogError):
    """Spark cannot be started; the text gives the cause."""


# Spark's home directory, and a copy of links without the jars that only slow down the start.
#
# spark-mllib registers functions in every session through Scala reflection, which is two thirds of the CPU of a
# session. The drainer does not use it. The directory has links to all files of pyspark except such jars. It is kept
# in XDG_CACHE_HOME or ~/.cache, because a class archive is valid only for the paths of the jars it was created with.

LEFT_OUT = ("spark-mllib_", "spark-graphx_")
LINKED = ("bin", "sbin", "python")


def cache_folder() -> Path:
    """The cache directory of all drainers of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "drainer"


def spark_home() -> Path:
    """SPARK_HOME if set, else the directory of pyspark, which contains Spark; does not import pyspark."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkUnavailable("pyspark is not installed here")
    return Path(found.origin).parent


def home_mark() -> str:
    """Hash that identifies this installation of Spark."""
    return hashlib.sha256(str(spark_home()).encode()).hexdigest()[:8]


def lean_home() -> Path:
    """pyspark's directory without the jars LEFT_OUT; the original where links cannot be made, or SPARK_HOME if set."""
    whole = spark_home()
    if os.environ.get("SPARK_HOME"):
        return whole
    folder = cache_folder() / f"spark-{home_mark()}"
    try:
        wanted = _wanted(whole)
        if _links(folder) != wanted:
            _make(folder, wanted)
            if _links(folder) != wanted:  # another drainer created it meanwhile, from another pyspark at the same path
                return whole
    except OSError:
        return whole
    return folder


def _wanted(whole: Path) -> dict[str, str]:
    """Relative path → target of the link."""
    found = {name: str(whole / name) for name in LINKED if (whole / name).is_dir()}
    jars = (jar for jar in os.listdir(whole / "jars") if not jar.startswith(LEFT_OUT))  # noqa: PTH208  whole/jars is big
    return {**found, **{f"jars/{jar}": str(whole / "jars" / jar) for jar in jars}}


def _links(folder: Path) -> dict[str, str]:
    """The links of an existing directory; empty if there is none."""
    if not folder.is_dir():
        return {}
    names = [name for name in os.listdir(folder) if name != "jars"]  # noqa: PTH208
    names += [f"jars/{jar}" for jar in os.listdir(folder / "jars")]  # noqa: PTH208
    return {name: os.readlink(folder / name) for name in names}  # noqa: PTH115


def _make(folder: Path, wanted: dict[str, str]) -> None:
    """Create the directory under a temporary name and rename it, so that it appears complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="spark-making-") as name:
        made = Path(name) / "home"
        (made / "jars").mkdir(parents=True)
        for path, target in wanted.items():
            (made / path).symlink_to(target)
        if folder.exists():
            folder.rename(Path(name) / "old")
        made.rename(folder)


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
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False).stdout
    version = next((line.partition("@")[2] for line in modules.splitlines() if line.startswith("java.base@")), "")
    if not version or int(version.split(".")[0].split("-")[0]) < JAVA_MAJOR_MIN:
        raise SparkUnavailable(f"{java} is Java {version or 'before 9'}: {INSTALL_JAVA}")
    if "jdk.incubator.vector" not in modules:
        raise SparkUnavailable(f"{java} lacks the module jdk.incubator.vector: {INSTALL_JAVA}")
    return version


def archive_of(java_version: str) -> Path:
    """Path of the class archive for this Spark and Java (drainer.spark.startup.class_archive creates it)."""
    name = f"spark-{metadata.version('pyspark')}-{home_mark()}-java-{java_version}.jsa"
    return cache_folder() / name


def java_options(log4j: Path, classes: Path | None, more: str) -> str:
    """Options of the JVM; `classes`: the class archive, used if it exists; `more`: options of the user."""
    java = f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log4j.absolute().as_uri()}"
    java += f" -Djava.io.tmpdir={tempfile.gettempdir()}"
    if classes is not None and classes.exists():
        java += f' -XX:SharedArchiveFile="{classes}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return f"{java} {more}".strip()
