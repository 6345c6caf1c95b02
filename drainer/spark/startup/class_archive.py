"""An archive of the classes that the drainer's JVM loads, which halves the CPU of a start (class data sharing).

    python -m drainer.spark.startup.class_archive [--if-missing]

makes it anew, once for an installation of pyspark and Java, which takes half a minute. A drainer that has run for a
while does so by itself where there is none (archive_maker.py). Every later start uses it if it is there:
java.py names the file, in XDG_CACHE_HOME or ~/.cache. The JVM itself checks that it fits its version and its
jars, and does without if it does not.
"""

from __future__ import annotations

import fcntl
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from drainer.spark.startup.java import MAKING, archive_of, check_java
from drainer.spark.startup.unavailable import SparkUnavailable
from drainer.temporary_files import locked_folder, scratch

LOCK = "making.lock"
BATCHES = 3
MAKE_S = 300.0


def make(java_version: str, *, if_missing: bool = False) -> Path:
    """Start Spark, do once what a drainer does, and let the JVM write down what it has loaded. One at a time: where
    another process makes it, this one waits. `if_missing`: one that is there is left.

    Raises SparkUnavailable, and OSError where there is no room for about 150 MB.
    """
    place = archive_of(java_version)
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (if_missing and place.exists()):
            _make(place)
    return place


def _make(place: Path) -> None:
    from drainer.spark.startup.session import start_session, stop_session

    with scratch(), locked_folder(place.parent, MAKING) as folder:
        made = folder / "classes.jsa"
        conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={made}"}
        session = start_session(master="local[2]", output=folder / "spark.log", conf=conf, archive=False)
        _exercise(session, folder)
        stop_session(session, exit_s=MAKE_S)
        made.replace(place)


def _exercise(session: SparkSession, folder: Path) -> None:
    """A few batches of a stream, both ways."""
    from drainer.spark.startup.idle_source import IdleSource
    from drainer.spark.startup.warmup import both_ways, warm_up

    warm_up(session, 2)
    session.dataSource.register(IdleSource)
    enough = threading.Event()

    def each(rows: DataFrame, number: int) -> None:
        both_ways(rows, 2)
        if number + 1 >= BATCHES:
            enough.set()

    stream = session.readStream.format(IdleSource.name()).option("tasks", "2").load()
    query = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(folder / "checkpoint")).start()
    while query.isActive and not enough.wait(0.2):
        pass
    query.stop()


def main() -> int:
    try:
        sys.stdout.write(f"{make(check_java(), if_missing='--if-missing' in sys.argv[1:])}\n")
    except (SparkUnavailable, OSError) as error:
        sys.stderr.write(f"no archive was made: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
