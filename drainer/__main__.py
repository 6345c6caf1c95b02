"""`drainer -config drainer.toml`: exit code 0 after a signal or --until-now, 1 for bad settings, 2 for a failure or a
bad command line (`K-03`), 130 for a load that a signal ended.

The JVM's process is started before the other modules are imported: its start takes several seconds."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Final

from binlog.runtime import grpc_environment as _before_grpc  # noqa: F401  # isort: skip
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.command_line import INTERRUPTED
from binlog.runtime.config import load_or_exit

from drainer.config import PROGRAM, Config
from drainer.original_settings import given_without_effect
from drainer.schema.errors import SchemaError
from drainer.spark.startup.jvm_launch import opened

if TYPE_CHECKING:
    from drainer.service.check import TableCheck

NOT_EQUAL: Final = 3  # exit code of `drainer check`

_log = log.get_logger("drainer")


def main() -> int:
    command = {"plan": plan, "load": load, "check": check}.get("".join(sys.argv[1:2]))
    if command is not None:
        return command(sys.argv[2:])
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


def load(args: list[str]) -> int:
    """`drainer load [-from delta:DIR [-at TSO] [-from-changefeed NAME]] -config drainer.toml`: load upstream's tables,
    or those of a lake, into an empty destination."""
    parser = _parser("load")
    about = "a lake that a drainer has written: read upstream's tables there, and not in TiDB"
    parser.add_argument("-from", "--from", dest="origin", default="", metavar="delta:DIR", help=about)
    parser.add_argument("-at", "--at", type=int, metavar="TSO", help="as of which the lake is read; its position")
    about = "the lake's changefeed: default"
    parser.add_argument("-from-changefeed", "--from-changefeed", default="default", metavar="NAME", help=about)
    own, rest = parser.parse_known_args(args)
    config = load_or_exit(PROGRAM, rest)
    from drainer.service.first_load import load as first_load
    from drainer.service.first_load import shown
    from drainer.sink.registry import origin as origin_of

    async def loaded() -> bool:
        return await first_load(config, _stopped_by_signals(), progress, origin=origin)

    try:
        with shown() as progress:  # before the log, whose lines then appear above the bar
            log.setup(config.log_level, config.log_file)
            config.check()
            if own.at is not None and not own.origin:
                raise ConfigError("-at: only a lake is read at a TSO that is given: -from delta:DIR")
            origin = origin_of(own.origin, own.from_changefeed, own.at) if own.origin else None
            whole = asyncio.run(loaded())
    except (BinlogError, ValueError) as error:
        return _failed("load", error)
    if not whole:
        sys.stderr.write("drainer load: stopped before everything was loaded; start it again to continue\n")
    return 0 if whole else INTERRUPTED


def check(args: list[str]) -> int:
    """`drainer check [-repair] [-table PATTERN]... [-redact] [-json] [-executors] [-consumer URI] -config FILE`:
    compare the destination's tables with upstream's, and repair them."""
    parser = _parser("check")
    parser.add_argument("-table", "--table", action="append", default=[], help="pattern of a name; may be repeated")
    about = "kafka-consumer's --to, a server: compare what it makes of the topics that this drainer writes"
    parser.add_argument("-consumer", "--consumer", default="", metavar="URI", help=about)
    flags = {"repair": "write what differs", "redact": "values of keys alone", "json": "as JSON"}
    for name, text in (flags | {"executors": "on Spark's executors"}).items():
        parser.add_argument(f"-{name}", f"--{name}", action="store_true", help=text)
    own, rest = parser.parse_known_args(args)
    config = load_or_exit(PROGRAM, rest)
    from drainer.service.check import CheckOptions, shown
    from drainer.service.check import check as compared

    options = CheckOptions(tuple(own.table), own.repair, own.redact, own.json, own.executors, own.consumer)

    async def checked() -> list[TableCheck]:
        return await compared(config, options, _stopped_by_signals())

    try:
        log.setup(config.log_level, "")  # the file is the daemon's
        config.check()
        found = asyncio.run(checked())
    except (BinlogError, ValueError) as error:
        return _failed("check", error)
    sys.stdout.write(shown(found, options) + "\n")
    if any(one.error for one in found):
        return 2
    return 0 if all(one.is_equal for one in found) else NOT_EQUAL


def _parser(command: str) -> argparse.ArgumentParser:
    """Return a parser of the command's own flags; those of the configuration are left to load_or_exit."""
    about = "Others: drainer -h"
    parser = argparse.ArgumentParser(f"drainer {command}", add_help=False, allow_abbrev=False, epilog=about)
    parser.add_argument("-h", "-help", "--help", action="help", help=argparse.SUPPRESS)
    return parser


def _failed(command: str, error: Exception) -> int:
    """Print why a command failed. Return its exit code."""
    sys.stderr.write(f"drainer {command}: {error}\n")
    return 1 if isinstance(error, ConfigError | ValueError) else 2


def _stopped_by_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def run(config: Config) -> None:
    """Run until a signal, until --until-now is reached, or until something fails, which is raised."""
    stop = _stopped_by_signals()
    with opened(config, "spark.log", stop.is_set) as opening:
        from drainer.service.daemon import drain

        await drain(config, opening, stop)


if __name__ == "__main__":
    sys.exit(main())
