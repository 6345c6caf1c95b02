"""-watch: repeats a listing, at a terminal in place, elsewhere one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime

from binlog.errors import BinlogError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pumpclient.ctl.errors import code_of
from pumpclient.ctl.output import form_of, open_output
from pumpclient.ctl.session import CommandSession

Command = Callable[[CommandSession], Awaitable[None]]
Show = Callable[[str], None]


async def watch(session: CommandSession, command: Command) -> None:
    """List every -interval until SIGINT or SIGTERM. An error in the first listing is raised; later errors are shown."""
    interval_s = session.options.interval
    form = form_of(session.options.output)
    listed = False
    with _shown(form, interval_s) as show:
        async with _signals() as stopped:
            while not stopped.is_set():
                buffer = io.StringIO()
                session.out = open_output(form, buffer, buffer, line=True)
                try:
                    if not await _finished(command(session), stopped):
                        return
                except BinlogError as error:
                    if not listed:
                        raise
                    session.out.failed(session.options.cmd, str(error), code_of(error))
                listed = True
                session.out.end()
                show(buffer.getvalue())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), interval_s)


async def _finished(work: Awaitable[None], stopped: asyncio.Event) -> bool:
    """Wait for the work and return True; return False if `stopped` was set first (the work is then cancelled).

    Raises the exception of the work.
    """
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    done = tasks[0].done()
    for task in tasks:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if done:
        tasks[0].result()
    return done


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


@contextlib.asynccontextmanager
async def _signals() -> AsyncIterator[asyncio.Event]:
    """Return an event that SIGINT and SIGTERM set."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
