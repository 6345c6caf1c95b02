"""Spark's folder, and one beside it that leaves out the jars that only cost time at a start.

spark-mllib adds functions to every session, and does so by way of Scala's reflection, which is two thirds of what a
session costs. Nothing of the drainer uses it. The folder holds links to all that pyspark brings but for such jars. It
stays, in XDG_CACHE_HOME or ~/.cache: an archive of classes holds only for the paths of the jars that it was made with.
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
    """What is kept for later starts of any drainer of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "drainer"


def spark_home() -> Path:
    """The user's SPARK_HOME, or pyspark's folder, which holds Spark itself; pyspark is not imported."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkUnavailable("pyspark is not installed here")
    return Path(found.origin).parent


def home_mark() -> str:
    """Tells one installation of Spark from another."""
    return hashlib.sha256(str(spark_home()).encode()).hexdigest()[:8]


def lean_home() -> Path:
    """pyspark's folder without LEFT_OUT; the whole one where it cannot be made, and the user's SPARK_HOME as it is."""
    whole = spark_home()
    if os.environ.get("SPARK_HOME"):
        return whole
    place = cache_folder() / f"spark-{home_mark()}"
    try:
        wanted = _wanted(whole)
        if _links(place) != wanted:
            _make(place, wanted)
            if _links(place) != wanted:  # another drainer was quicker, of another pyspark in the same folder
                return whole
    except OSError:
        return whole
    return place


def _wanted(whole: Path) -> dict[str, str]:
    """Path within the folder → what it is a link to."""
    found = {name: str(whole / name) for name in LINKED if (whole / name).is_dir()}
    jars = (jar for jar in os.listdir(whole / "jars") if not jar.startswith(LEFT_OUT))  # noqa: PTH208  whole/jars is big
    return {**found, **{f"jars/{jar}": str(whole / "jars" / jar) for jar in jars}}


def _links(place: Path) -> dict[str, str]:
    """Of a folder that is there; nothing where there is none."""
    if not place.is_dir():
        return {}
    names = [name for name in os.listdir(place) if name != "jars"]  # noqa: PTH208
    names += [f"jars/{jar}" for jar in os.listdir(place / "jars")]  # noqa: PTH208
    return {name: os.readlink(place / name) for name in names}  # noqa: PTH115


def _make(place: Path, wanted: dict[str, str]) -> None:
    """Made aside and renamed, so that nobody sees half of it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="spark-making-") as name:
        made = Path(name) / "home"
        (made / "jars").mkdir(parents=True)
        for path, target in wanted.items():
            (made / path).symlink_to(target)
        if place.exists():
            place.rename(Path(name) / "old")
        made.rename(place)
