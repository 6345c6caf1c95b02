"""Creates the archive of the classes that the drainer's JVM loads (class data sharing), which halves the CPU of a
start.

    python -m drainer.spark.startup.class_archive [--if-missing]

creates it for this installation of pyspark and Java, in half a minute. A drainer that has run for a while does so by
itself if there is none (archive_maker.py). Every later start uses it if it exists: java.py names the file, in
XDG_CACHE_HOME or ~/.cache. The JVM checks that it fits its version and jars, and ignores it if it does not.
"""

from __future__ import annotations

import fcntl
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from drainer.spark.startup.java import MAKING, SparkUnavailable, archive_of, check_java
from drainer.temporary_files import locked_folder, temporary_folder

LOCK = "making.lock"
BATCHES = 3
MAKE_S = 300.0


def make(java_version: str, *, if_missing: bool = False) -> Path:
    """Start Spark, run the steps of a drainer once, and let the JVM dump its loaded classes; returns the archive. Waits
    while another process creates it. `if_missing`: keep an existing one.

    Raises SparkUnavailable, and OSError where there is no room for about 150 MB.
    """
    archive = archive_of(java_version)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (if_missing and archive.exists()):
            _make(archive)
    return archive


def _make(archive: Path) -> None:
    from drainer.spark.startup.session import start_session, stop_session

    with temporary_folder(), locked_folder(archive.parent, MAKING) as folder:
        made = folder / "classes.jsa"
        conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={made}"}
        session = start_session(master="local[2]", output=folder / "spark.log", conf=conf, archive=False)
        _exercise(session, folder)
        stop_session(session, exit_s=MAKE_S)
        made.replace(archive)


def _exercise(session: SparkSession, folder: Path) -> None:
    """Run a few batches of a stream, in the driver and distributed."""
    from drainer.spark.startup.warmup import packed_rows, run_both_modes, warm_up

    warm_up(session, 2)
    enough = threading.Event()

    def each(rows: DataFrame, number: int) -> None:
        run_both_modes(packed_rows(rows), 2)
        if number + 1 >= BATCHES:
            enough.set()

    stream = session.readStream.format("rate").option("numPartitions", "2").load().select("value")
    query = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(folder / "checkpoint")).start()
    while query.isActive and not enough.wait(0.2):
        pass
    query.stop()


def main() -> int:
    try:
        sys.stdout.write(f"{make(check_java(), if_missing='--if-missing' in sys.argv[1:])}\n")
    except (SparkUnavailable, OSError) as error:
        sys.stderr.write(f"the class archive was not created: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
