"""Creates the archive of the classes that the drainer's JVM loads (class data sharing), which halves the CPU of a
start.

    python -m drainer.spark.startup.class_archive [--if-missing]

creates it for this installation of pyspark and Java, in half a minute. A drainer that has run for a while does so by
itself if there is none, in a process of the lowest priority that ends with it. Every later start uses it if it exists:
java.py names the file, in XDG_CACHE_HOME or ~/.cache. The JVM checks that it fits its version and jars, and ignores it
if it does not.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from binlog.runtime.log import get_logger

from drainer.spark.startup import supervisor
from drainer.spark.startup.java import MAKING, SparkUnavailable, archive_of, check_java
from drainer.temporary_files import locked_folder, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK = "making.lock"
BATCHES = 3
MAKE_S = 300.0
AFTER_S = 120.0
MAKE = ("nice", "-n", "19", sys.executable, "-m", "drainer.spark.startup.class_archive", "--if-missing")
OUTPUT_BYTES_MAX = 1000

_log = get_logger(__name__)


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
    from drainer.spark.startup.jvm_launch import start_jvm
    from drainer.spark.startup.session import open_session, stop_session

    with temporary_folder(), locked_folder(archive.parent, MAKING) as folder:
        made = folder / "classes.jsa"
        conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={made}"}
        session = open_session(start_jvm(master="local[2]", output=folder / "spark.log", conf=conf, archive=False))
        _exercise(session, folder)
        stop_session(session, exit_s=MAKE_S)
        made.replace(archive)


def _exercise(session: SparkSession, folder: Path) -> None:
    """Run a few batches of a stream, in the driver and distributed."""
    from drainer.spark.startup.warmup import WarmUp, packed_rows, run_both_modes

    WarmUp(session, 2)
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


async def make_where_missing(after_s: float = AFTER_S, make: Sequence[str] = MAKE) -> None:
    """Create the archive after `after_s` seconds; a failure is only logged. On cancellation the process is killed."""
    try:
        archive = archive_of(await asyncio.to_thread(check_java))
    except SparkUnavailable:
        return
    if archive.exists():
        return
    await asyncio.sleep(after_s)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), "0", *make),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("cannot start the process that creates the JVM class archive", error=str(error))
        return
    try:
        assert process.stdout is not None
        output = await process.stdout.read()
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()  # the supervisor: the kernel then kills what it started
        await process.wait()
        raise
    if code:
        text = output.decode(errors="replace")[-OUTPUT_BYTES_MAX:].strip()
        _log.warning("creating the JVM class archive failed; starts take longer", code=code, output=text)
    else:
        _log.info("JVM class archive created; later starts take half the CPU", file=str(archive))


def main() -> int:
    try:
        sys.stdout.write(f"{make(check_java(), if_missing='--if-missing' in sys.argv[1:])}\n")
    except (SparkUnavailable, OSError) as error:
        sys.stderr.write(f"the class archive was not created: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
