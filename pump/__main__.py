"""`pump -config pump.toml …`: a pump that runs until a signal (`K-09`). Exit codes are upstream's (`P-LC-11`)."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import sys

from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401  # isort: skip
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log

from pump.config import PumpConfig, load_config
from pump.process import Pump

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GC_THRESHOLD = 100_000
SIGNAL_WAIT_S = 0.1  # for the loop to see a signal that the process has got
RESTART = -1  # no exit code: the same program begins again in this process

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
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    try:
        await starting
    except (BinlogError, OSError) as error:
        _log.error("pump cannot start", error=error)
        if config.log_file:
            sys.stderr.write(f"pump: {error}\n")
        return 1 if isinstance(error, ConfigError) else 2
    except Exception as error:  # noqa: BLE001  Python's own exit code is 1, which a service manager takes for a setting
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
    """Whether a signal has come, the last moment before a restart included; one that comes later ends the process."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(signalled.wait(), SIGNAL_WAIT_S)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.remove_signal_handler(number)
    return signalled.is_set()


def main() -> None:
    """The console script."""
    config = load_config(sys.argv[1:])
    # Thousands of binlogs are alive for a moment and none of them in a cycle: the default would look at all of them
    # again and again (a fifth of the time of a write).
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    if config.enable_debug:  # also of a process whose event loop stands still
        faulthandler.register(signal.SIGUSR1, all_threads=True)
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
