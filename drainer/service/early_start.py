"""First steps of a start: signal handlers, the folder of temporary files, and the JVM process.

The other modules are imported afterwards, while the JVM starts, which takes several seconds.
"""

from __future__ import annotations

import asyncio
import signal

from drainer.config import Config
from drainer.spark.startup.session_opening import Opening
from drainer.temporary_files import check_data_dir, temporary_folder


async def run(config: Config) -> None:
    """Run until a signal, until --until-now is reached, or until something fails, which is raised."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        loop.add_signal_handler(number, stop.set)
    check_data_dir(config.data_dir)
    with temporary_folder():
        spark = config.spark
        output = config.data_dir / "spark.log"
        opening = Opening(master=spark.master, output=output, conf=spark.conf, stopping=stop.is_set)
        try:
            from drainer.service.daemon import drain

            await drain(config, opening, stop)
        finally:
            await asyncio.to_thread(opening.close)
