"""`python -m demo`: etcd, two pumps, the drainer on Spark into SQLite, and a shop that writes; then compare.

Exit code 0 when every table downstream equals what the shop wrote, 1 on any difference or failure.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from demo.processes import DemoError
from demo.run import Options, run
from demo.screen import Screen


def parse(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=__doc__.split("\n\n")[0] if __doc__ else None,
        epilog="Exit code 0 when every table downstream equals what the shop wrote, 1 if not, 2 for a bad command "
        "line. Logs and the SQLite file stay in the directory. Example: python -m demo --seconds 20 --rate 800",
    )
    parser.add_argument("--seconds", type=float, default=45.0, help="seconds the shop writes (default 45)")
    parser.add_argument("--writers", type=int, default=8, help="concurrent writers (default 8)")
    parser.add_argument("--rate", type=float, default=400.0, help="transactions a second, about (default 400)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default 1)")
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


def main() -> int:
    options = parse(sys.argv[1:])
    screen = Screen()
    try:
        return 0 if asyncio.run(run(options, screen)) else 1
    except DemoError as error:
        screen.fail(str(error))
        return 1
    except KeyboardInterrupt:
        screen.fail("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
