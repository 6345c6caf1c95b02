"""`pump -config pump.toml …`: a pump that runs until a signal (`K-09`). Exit codes are upstream's (`P-LC-11`)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys

from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401  # isort: skip
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.config import load_or_exit
from binlog.runtime.waiting import cancel, is_set_within

from pump.config import PROGRAM, PumpConfig
from pump.process import Pump

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GC_THRESHOLD = 100_000
SIGNAL_WAIT_S = 0.1  # time for the loop to see a signal that the process has received
RESTART = -1  # not an exit code: the program is executed again in this process

_log = log.get_logger("pump")


async def _run(config: PumpConfig) -> int:
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    for number in SIGNALS:
        loop.add_signal_handler(number, signalled.set)
    pump = Pump(config)
    stopping = asyncio.ensure_future(signalled.wait())
    starting = asyncio.ensure_future(pump.start())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await cancel(starting)
        return 0
    try:
        await starting
    except (BinlogError, OSError) as error:
        _log.error("pump cannot start", error=error)
        if config.log_file:
            sys.stderr.write(f"pump: {error}\n")
        return 1 if isinstance(error, ConfigError) else 2
    except Exception as error:  # noqa: BLE001  Python's exit code would be 1, which means a wrong setting here
        _log.exception("pump cannot start: unexpected error")
        if config.log_file:
            sys.stderr.write(f"pump: {type(error).__name__}: {error}\n")
        return 2
    requested = asyncio.ensure_future(pump.requested())
    await asyncio.wait((requested, stopping), return_when=asyncio.FIRST_COMPLETED)
    action = requested.result() if requested.done() else "pause"
    await pump.stop("pause" if action == "restart" else action)
    return RESTART if action == "restart" and not await _ended(signalled) else 0


async def _ended(signalled: asyncio.Event) -> bool:
    """Return whether a signal has arrived before a restart. A signal that arrives after this ends the process."""
    await is_set_within(SIGNAL_WAIT_S, signalled)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.remove_signal_handler(number)
    return signalled.is_set()


def main() -> None:
    """Run the console script."""
    config = load_or_exit(PROGRAM)
    # Thousands of binlogs exist for a short time, none of them in a reference cycle. The default thresholds would
    # traverse them again and again, which takes a fifth of the time of a write.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    try:
        log.setup(config.log_level, config.log_file)
    except ConfigError as error:
        sys.stderr.write(f"pump: {error}\n")
        sys.exit(1)
    if config.without_effect:
        _log.warning("settings of the original that have no effect here", settings=config.without_effect)
    code = asyncio.run(_run(config))
    if code == RESTART:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    sys.exit(code)


if __name__ == "__main__":
    main()
