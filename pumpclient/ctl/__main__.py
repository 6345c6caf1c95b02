"""The program: `binlogctl -cmd pumps -pd-urls …`. For exit codes see errors.py. `watch` repeats a listing."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import io
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime

from binlog.errors import BinlogError, EtcdError
from binlog.runtime.command_line import INTERRUPTED, discard_stdout
from binlog.runtime.config import load_or_exit
from binlog.runtime.encrypt import encrypt as encrypted
from binlog.runtime.encrypt import warn_of_default_key
from binlog.runtime.log import setup
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pumpclient.ctl import nodes, settle, timestamps
from pumpclient.ctl.errors import DONE, Misused, code_of
from pumpclient.ctl.options import PROGRAM, Options
from pumpclient.ctl.output import Output, form_of, open_output
from pumpclient.ctl.session import CommandSession, open_session, why_unreachable

STDIN = "-"


def encrypt(options: Options, out: Output) -> None:
    """Encrypt -text. Raises Misused without a text, CipherError for an invalid key."""
    text = _read() if options.text == STDIN else options.text
    if not text:
        raise Misused("need to specify the text to be encrypt: -text, or -text - to read it from stdin")
    warn_of_default_key()
    out.done("encrypt text", encrypted=encrypted(text))


def _read() -> str:
    """Read one line from stdin: arguments of a command line are visible to every user of the machine."""
    if sys.stdin.isatty():
        return getpass.getpass("password: ")
    return sys.stdin.readline().rstrip("\r\n")


Command = Callable[[CommandSession], Awaitable[None]]
Show = Callable[[str], None]


async def watch(session: CommandSession, command: Command) -> None:
    """List every -interval until SIGINT or SIGTERM. An error in the first listing is raised; later errors are shown."""
    interval_s = session.options.interval
    form = form_of(session.options.output)
    listed = False
    with _shown(form, interval_s) as show, _ended_by_signals():
        while True:
            buffer = io.StringIO()
            session.out = open_output(form, buffer, buffer, line=True)
            try:
                await command(session)
            except BinlogError as error:
                if not listed:
                    raise
                session.out.failed(session.options.cmd, str(error), code_of(error))
            listed = True
            session.out.end()
            show(buffer.getvalue())
            await asyncio.sleep(interval_s)


@contextlib.contextmanager
def _shown(form: str, interval_s: float) -> Iterator[Show]:
    """Return how a listing is printed. A listing replaces the previous one only at a terminal that can move its cursor
    (TERM=dumb says that it cannot, and rich then shows nothing before the end)."""
    console = Console()
    if form == "table" and sys.stdout.isatty() and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:

            def replace(text: str) -> None:
                title = f"{_now()}, every {interval_s:g} s, Ctrl-C ends it"
                live.update(Text(f"{title}\n\n{text}", no_wrap=True, overflow="ellipsis"), refresh=True)

            yield replace
    else:

        def append(text: str) -> None:
            sys.stdout.write(f"{_now()}\n{text}\n" if form == "table" else text)
            sys.stdout.flush()

        yield append


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block when SIGINT or SIGTERM arrives: whatever it waits for is cancelled."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
    try:
        yield
    except asyncio.CancelledError:
        task.uncancel()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


COMMANDS: Mapping[str, Command] = {
    "pumps": lambda session: nodes.query(session, "pumps"),
    "drainers": lambda session: nodes.query(session, "drainers"),
    "update-pump": lambda session: nodes.update(session, "pumps"),
    "update-drainer": lambda session: nodes.update(session, "drainers"),
    "pause-pump": lambda session: nodes.ask(session, "pumps", "pause"),
    "pause-drainer": lambda session: nodes.ask(session, "drainers", "pause"),
    "offline-pump": lambda session: nodes.ask(session, "pumps", "close"),
    "offline-drainer": lambda session: nodes.ask(session, "drainers", "close"),
    "pause-changefeed": lambda session: nodes.steer(session, "pause", {}),
    "resume-changefeed": lambda session: nodes.steer(session, "resume", {}),
    "update-changefeed": nodes.update_changefeed,
    "decide-ddl": nodes.decide_ddl,
    "decide-transaction": nodes.decide_transaction,
    "generate_meta": timestamps.generate_meta,
    "inspect": settle.inspect,
    "settle": settle.settle,
    "pass-over": settle.skip_binlog,
    "reset-tso-bound": timestamps.reset,
}


# These commands need no cluster.
LOCAL: Mapping[str, Callable[[Options, Output], None]] = {"encrypt": encrypt}


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
