"""`python -m demo`: etcd, two pumps, the drainer on Spark into SQLite, and a shop that writes; then compare.

Exit code 0 when every table downstream equals what the shop wrote, 1 on any difference or failure.
"""

from __future__ import annotations

import sys

from demo.command import main
from demo.run import run
from demo.screen import Screen

if __name__ == "__main__":
    sys.exit(main(run, Screen, prog="python -m demo", about=__doc__, seconds=45.0, rate=400.0))
