"""`binlogctl -cmd pumps -pd-urls …`: exit code 0, 1 when the command failed, 2 for a bad command line (K-03)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger, setup
from binlog.runtime.version import version_text

from pumpclient.ctl import bound, leave, meta, nodes, passing, settle
from pumpclient.ctl.options import NOT_YET, Options, UsageError, parse, usage
from pumpclient.ctl.output import LogOutput, open_output
from pumpclient.ctl.session import CommandError, Session, open_session

Command = Callable[[Session], Awaitable[None]]

log = get_logger("binlogctl")


COMMANDS: Mapping[str, Command] = {
    "pumps": lambda session: nodes.query(session, "pumps"),
    "drainers": lambda session: nodes.query(session, "drainers"),
    "update-pump": lambda session: nodes.update(session, "pumps"),
    "update-drainer": lambda session: nodes.update(session, "drainers"),
    "pause-pump": lambda session: leave.ask(session, "pumps", "pause"),
    "pause-drainer": lambda session: leave.ask(session, "drainers", "pause"),
    "offline-pump": lambda session: leave.ask(session, "pumps", "close"),
    "offline-drainer": lambda session: leave.ask(session, "drainers", "close"),
    "generate_meta": meta.generate_meta,
    "inspect": settle.inspect,
    "settle": settle.settle,
    "pass-over": passing.pass_over,
    "reset-tso-bound": bound.reset,
}


async def run(options: Options) -> None:
    """BinlogError says why it failed."""
    command = COMMANDS.get(options.cmd)
    if command is None and options.cmd in NOT_YET:
        raise CommandError(f"{options.cmd} is not supported yet: {NOT_YET[options.cmd]}")
    if command is None:
        raise CommandError(f"cmd {options.cmd} not supported; binlogctl -h lists the commands")
    try:
        async with open_session(options) as session:
            await command(session)
    except ValueError as error:  # settings that pydantic or a URL parser refuses
        raise CommandError(f"-pd-urls {options.pd_urls}: {error}") from error


def main(argv: list[str] | None = None) -> None:
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        sys.stderr.write(f"binlogctl: {error}\nrun binlogctl -h for the flags\n")
        raise SystemExit(2) from None
    if options.help or options.version:
        sys.stdout.write((usage() if options.help else version_text()) + "\n")
        raise SystemExit(0)
    setup(stdout=True)  # its lines are its answer, for pipes; upstream's go there too
    try:
        asyncio.run(run(options))
    except BinlogError as error:
        if isinstance(open_output(options.output), LogOutput):
            log.critical("fail to execute command", cmd=options.cmd, error=str(error))
        else:
            sys.stderr.write(f"binlogctl {options.cmd}: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
