"""The command line of the demos, and their exit codes."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from demo.processes import DemoError
from demo.screen import Screen

S = TypeVar("S", bound=Screen)


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path
    seconds: float
    writers: int
    rate: float
    seed: int
    crash: bool


def parse(argv: list[str], *, prog: str, description: str, seconds: float, rate: float) -> Options:
    """Parse the command line. `seconds`, `rate`: the defaults."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog="Exit code 0 when every table downstream equals what the shop wrote, 1 if not, 2 for a bad command "
        f"line. Logs and SQLite files stay in the directory. Example: {prog} --seconds 20 --rate 100",
    )
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"seconds the shop writes (default {seconds:.0f})"
    )
    parser.add_argument("--writers", type=int, default=8, help="concurrent writers (default 8)")
    parser.add_argument("--rate", type=float, default=rate, help=f"transactions a second, about (default {rate:.0f})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default 1)")
    parser.add_argument(
        "--directory", type=Path, default=Path("demo-data"), help="emptied at start (default demo-data)"
    )
    parser.add_argument("--no-crash", action="store_true", help="do not kill a pump in the middle")
    args = parser.parse_args(argv)
    if args.seconds <= 0:
        parser.error(f"--seconds must be above 0, not {args.seconds}")
    if args.rate <= 0:
        parser.error(f"--rate must be above 0, not {args.rate}")
    if args.writers < 1:
        parser.error(f"--writers must be at least 1, not {args.writers}")
    return Options(args.directory, args.seconds, args.writers, args.rate, args.seed, crash=not args.no_crash)


def exit_code(work: Coroutine[Any, Any, bool], screen: Screen) -> int:
    """Run a demo and return its exit code: 0 if everything is equal. A signal that would end the demo stops its
    programs first.
    """
    # A shell starts a script's background processes with SIGINT ignored; asyncio would then not handle it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP is sent when a terminal is closed
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return 0 if asyncio.run(work) else 1
    except DemoError as error:
        screen.fail(str(error))
        return 1
    except KeyboardInterrupt:
        screen.fail("interrupted; its programs are stopped, their logs stay in the directory")
        return 130


def main(
    run: Callable[[Options, S], Coroutine[Any, Any, bool]],
    screen_type: Callable[[], S],
    *,
    prog: str,
    about: str | None,
    seconds: float,
    rate: float,
) -> int:
    """Run a demo with the options of this process's command line and return its exit code. `about`: the module's
    docstring, whose first paragraph describes the demo; `seconds`, `rate`: the defaults."""
    description = (about or "").split("\n\n")[0]
    options = parse(sys.argv[1:], prog=prog, description=description, seconds=seconds, rate=rate)
    screen = screen_type()
    return exit_code(run(options, screen), screen)
