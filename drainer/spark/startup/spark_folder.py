"""Spark's home directory, and a copy of links without the jars that only slow down the start.

spark-mllib registers functions in every session through Scala reflection, which is two thirds of the CPU of a session.
The drainer does not use it. The directory has links to all files of pyspark except such jars. It is kept in
XDG_CACHE_HOME or ~/.cache, because a class archive is valid only for the paths of the jars it was created with.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from drainer.spark.startup.unavailable import SparkUnavailable

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
    place = cache_folder() / f"spark-{home_mark()}"
    try:
        wanted = _wanted(whole)
        if _links(place) != wanted:
            _make(place, wanted)
            if _links(place) != wanted:  # another drainer created it meanwhile, from another pyspark at the same path
                return whole
    except OSError:
        return whole
    return place


def _wanted(whole: Path) -> dict[str, str]:
    """Relative path → target of the link."""
    found = {name: str(whole / name) for name in LINKED if (whole / name).is_dir()}
    jars = (jar for jar in os.listdir(whole / "jars") if not jar.startswith(LEFT_OUT))  # noqa: PTH208  whole/jars is big
    return {**found, **{f"jars/{jar}": str(whole / "jars" / jar) for jar in jars}}


def _links(place: Path) -> dict[str, str]:
    """The links of an existing directory; empty if there is none."""
    if not place.is_dir():
        return {}
    names = [name for name in os.listdir(place) if name != "jars"]  # noqa: PTH208
    names += [f"jars/{jar}" for jar in os.listdir(place / "jars")]  # noqa: PTH208
    return {name: os.readlink(place / name) for name in names}  # noqa: PTH115


def _make(place: Path, wanted: dict[str, str]) -> None:
    """Create the directory under a temporary name and rename it, so that it appears complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="spark-making-") as name:
        made = Path(name) / "home"
        (made / "jars").mkdir(parents=True)
        for path, target in wanted.items():
            (made / path).symlink_to(target)
        if place.exists():
            place.rename(Path(name) / "old")
        made.rename(place)
