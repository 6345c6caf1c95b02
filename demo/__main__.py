"""`python -m demo`: etcd, two pumps, the drainer on Spark into SQLite, and a shop that writes; then compare.

Exit code 0 when every table downstream equals what the shop wrote, 1 on any difference or failure.
"""

from __future__ import annotations

import sys

from demo.command import exit_code, parse
from demo.run import run
from demo.screen import Screen


def main() -> int:
    about = (__doc__ or "").split("\n\n")[0]
    options = parse(sys.argv[1:], prog="python -m demo", description=about, seconds=45.0, rate=400.0)
    screen = Screen()
    return exit_code(run(options, screen), screen)


if __name__ == "__main__":
    sys.exit(main())
