"""Creates the JVM class archive while the drainer runs, if there is none: later starts take half the CPU.

It runs in another process of the lowest priority, which starts some time after the drainer and ends with it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from binlog.runtime.log import get_logger

from drainer.spark.startup import supervisor
from drainer.spark.startup.java import SparkUnavailable, archive_of, check_java

AFTER_S = 120.0
MAKE = ("nice", "-n", "19", sys.executable, "-m", "drainer.spark.startup.class_archive", "--if-missing")
OUTPUT_BYTES_MAX = 1000

_log = get_logger(__name__)


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
