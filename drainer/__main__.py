"""`drainer -config drainer.toml`: exit code 0 after a signal or --until-now, 1 for bad settings, 2 for a failure or a
bad command line (`K-03`).

The JVM's process is started before the other modules are imported: its start takes several seconds."""

from __future__ import annotations

import asyncio
import signal
import sys

from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401  # isort: skip
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.config import load_or_exit

from drainer.config import PROGRAM, Config
from drainer.original_settings import given_without_effect
from drainer.schema.errors import SchemaError
from drainer.spark.startup.session_opening import Opening
from drainer.temporary_files import check_data_dir, temporary_folder

_log = log.get_logger("drainer")


def main() -> int:
    if sys.argv[1:2] == ["plan"]:
        return plan(sys.argv[2:])
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


def plan(args: list[str]) -> int:
    """`drainer plan [-json] -config drainer.toml`: print what each table of upstream's present
    schema becomes at the destination."""
    as_json = [arg for arg in args if arg in ("-json", "--json")]
    config = load_or_exit(PROGRAM, [arg for arg in args if arg not in as_json])
    from drainer.service.plan import planned, shown

    try:
        log.setup("warn", "")
        config.check()
        found = asyncio.run(planned(config))
    except (BinlogError, ValueError) as error:
        sys.stderr.write(f"drainer: {error}\n")
        return 2 if isinstance(error, SchemaError) else 1
    sys.stdout.write(shown(found, as_json=bool(as_json)) + "\n")
    return 2 if found.errors else 0


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


if __name__ == "__main__":
    sys.exit(main())
