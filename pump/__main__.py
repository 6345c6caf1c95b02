"""`pump -config pump.toml …`: a pump that runs until a signal (`K-09`). Exit codes as `P-LC-11`."""

from __future__ import annotations

import asyncio
import signal
import sys

from binlog import log
from binlog.errors import BinlogError, ConfigError

from pump.config import PumpConfig, load_config
from pump.process import Pump

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

_log = log.get_logger("pump")


async def _run(config: PumpConfig) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    pump = Pump(config)
    try:
        await pump.start()
    except ConfigError as error:
        _log.error("pump cannot start", error=error)
        return 1
    except (BinlogError, OSError) as error:
        _log.error("pump cannot start", error=error)
        return 2
    await stopping.wait()
    await pump.stop()
    return 0


def main() -> None:
    """The console script."""
    config = load_config(sys.argv[1:])
    log.setup(config.log_level, config.log_file)
    sys.exit(asyncio.run(_run(config)))


if __name__ == "__main__":
    main()
