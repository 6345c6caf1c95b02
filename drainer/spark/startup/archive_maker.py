"""Makes the archive of the JVM's classes beside a running drainer, where there is none: later starts take half the CPU.

It is another process at the lowest priority, begun only when the drainer has run for a while, and ends with it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from binlog.runtime.log import get_logger

from drainer.spark.startup import supervisor
from drainer.spark.startup.java import archive_of, check_java
from drainer.spark.startup.unavailable import SparkUnavailable

AFTER_S = 120.0
MAKE = ("nice", "-n", "19", sys.executable, "-m", "drainer.spark.startup.class_archive", "--if-missing")
TOLD_BYTES_MAX = 1000

_log = get_logger(__name__)


async def make_where_missing(after_s: float = AFTER_S, make: Sequence[str] = MAKE) -> None:
    """Until it is made or could not be made, which is only told; cancelled, what was begun is killed."""
    try:
        place = archive_of(check_java())
    except SparkUnavailable:
        return
    if place.exists():
        return
    await asyncio.sleep(after_s)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), *make),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("no archive of the JVM's classes can be made", error=str(error))
        return
    try:
        assert process.stdout is not None
        said = await process.stdout.read()
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()  # the supervisor: the kernel then kills what it started
        await process.wait()
        raise
    if code:
        text = said.decode(errors="replace")[-TOLD_BYTES_MAX:].strip()
        _log.warning("no archive of the JVM's classes was made, starts take longer", code=code, said=text)
    else:
        _log.info("an archive of the JVM's classes is there: later starts take half the CPU", file=str(place))
