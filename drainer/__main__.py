"""`drainer -config drainer.toml`: exit code 0 after a signal or --until-now, 1 for bad settings, 2 for a failure or a
bad command line (`K-03`)."""

from __future__ import annotations

import asyncio
import sys

from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401  # isort: skip
from binlog.errors import BinlogError
from binlog.runtime import log
from binlog.runtime.config import ConfigError, load_or_exit

from drainer.config import PROGRAM
from drainer.original_settings import given_without_effect
from drainer.service.early_start import run

_log = log.get_logger("drainer")


def main() -> int:
    config = load_or_exit(PROGRAM)
    try:
        log.setup(config.log_level, config.log_file)
        config.check()
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"drainer: {error}\n")
        return 1
    for setting, why in given_without_effect(config).items():
        _log.warning("a setting of the original, or of TiCDC, has no effect here", setting=setting, why=why)
    for warning in config.syncer.to.warnings():
        _log.warning("a setting may not have the intended effect", setting="syncer.to", why=warning)
    try:
        asyncio.run(run(config))
    except BinlogError as error:
        _log.error("drainer failed", kind=type(error).__name__, error=str(error))
        if config.log_file:
            sys.stderr.write(f"drainer: {error}\n")
        return 1 if isinstance(error, ConfigError) else 2
    except Exception as error:  # noqa: BLE001  the one place that must turn whatever it is into an exit code
        _log.exception("drainer stopped on an unexpected error")
        if config.log_file:
            sys.stderr.write(f"drainer: {type(error).__name__}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
