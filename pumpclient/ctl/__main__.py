"""The program: `binlogctl -cmd pumps -pd-urls …`. For exit codes see errors.py."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping

from binlog.errors import BinlogError, EtcdError
from binlog.runtime.command_line import INTERRUPTED, discard_stdout
from binlog.runtime.config import load_or_exit
from binlog.runtime.log import setup

from pumpclient.ctl import bound, meta, nodes, passing, password, requests, settle
from pumpclient.ctl.errors import DONE, Misused, code_of
from pumpclient.ctl.options import PROGRAM, Options
from pumpclient.ctl.output import Output, form_of, open_output
from pumpclient.ctl.reaching import why_unreachable
from pumpclient.ctl.session import CommandSession, open_session
from pumpclient.ctl.watch import watch

Command = Callable[[CommandSession], Awaitable[None]]

COMMANDS: Mapping[str, Command] = {
    "pumps": lambda session: nodes.query(session, "pumps"),
    "drainers": lambda session: nodes.query(session, "drainers"),
    "update-pump": lambda session: nodes.update(session, "pumps"),
    "update-drainer": lambda session: nodes.update(session, "drainers"),
    "pause-pump": lambda session: requests.ask(session, "pumps", "pause"),
    "pause-drainer": lambda session: requests.ask(session, "drainers", "pause"),
    "offline-pump": lambda session: requests.ask(session, "pumps", "close"),
    "offline-drainer": lambda session: requests.ask(session, "drainers", "close"),
    "pause-changefeed": requests.pause_changefeed,
    "resume-changefeed": requests.resume_changefeed,
    "update-changefeed": requests.update_changefeed,
    "decide-ddl": requests.decide_ddl,
    "decide-transaction": requests.decide_transaction,
    "generate_meta": meta.generate_meta,
    "inspect": settle.inspect,
    "settle": settle.settle,
    "pass-over": passing.skip_binlog,
    "reset-tso-bound": bound.reset,
}


# These commands need no cluster.
LOCAL: Mapping[str, Callable[[Options, Output], None]] = {"encrypt": password.encrypt}


async def run(options: Options, out: Output) -> None:
    """Run a command. Raises BinlogError with the reason if it fails."""
    if options.cmd in LOCAL:
        LOCAL[options.cmd](options, out)
        return
    command = COMMANDS.get(options.cmd)
    if command is None:
        raise Misused(f"cmd {options.cmd} not supported; binlogctl -h lists the commands")
    try:
        async with open_session(options, out) as session:
            try:
                await (watch(session, command) if options.watch else command(session))
            except EtcdError as error:
                why = await why_unreachable(session.section.pd_urls, session.security)
                raise EtcdError(f"{error} {why}") from error
    except ValueError as error:  # pydantic or a URL parser refused a setting
        raise Misused(f"-pd-urls {options.pd_urls}: {error}") from error


def _exit_code(options: Options) -> int:
    """Run a command whose command line is valid. Return its exit code."""
    # With the output format log, the log lines are the output, so they go to stdout, as in the original.
    form = form_of(options.output)
    setup(stdout=form == "log")
    out = open_output(form, sys.stdout, sys.stderr)
    code = DONE
    try:
        asyncio.run(run(options, out))
    except BinlogError as error:
        code = code_of(error)
        out.failed(options.cmd, str(error), code)
    except KeyboardInterrupt:
        return INTERRUPTED
    if not options.watch or code:
        out.end()
    return code


def main(argv: list[str] | None = None) -> None:
    options = load_or_exit(PROGRAM, argv)
    try:
        code = _exit_code(options)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        code = DONE
    raise SystemExit(code)


if __name__ == "__main__":
    main()
