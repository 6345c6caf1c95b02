"""-watch: repeats a listing, at a terminal in place, elsewhere one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
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
