"""The drainer's first second: signals are heard, temporary files have their place, and the JVM starts.

Only then is the rest imported: the JVM needs several seconds, and runs on the other processor meanwhile.
"""

from __future__ import annotations

import asyncio
import signal

from drainer.config import Config
from drainer.spark.startup.session_opening import Opening
from drainer.temporary_files import check_data_dir, scratch


async def run(config: Config) -> None:
    """Run until a signal, until --until-now is reached, or until something fails: then the error is raised."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        loop.add_signal_handler(number, stop.set)
    check_data_dir(config.data_dir)
    with scratch():
        spark = config.spark
        output = config.data_dir / "spark.log"
        opening = Opening(master=spark.master, output=output, conf=spark.conf, stopping=stop.is_set)
        try:
            from drainer.service.daemon import drain

            await drain(config, opening, stop)
        finally:
            await asyncio.to_thread(opening.close)
