"""`python -m tests.crash.sync_once FILE`: writes and syncs a file; exit code 5 where fdatasync says EIO."""

from __future__ import annotations

import os
import sys

with open(sys.argv[1], "wb") as file:  # noqa: PTH123  three lines
    file.write(b"x")
    file.flush()
    try:
        os.fdatasync(file.fileno())
    except OSError as error:
        sys.exit(error.errno)
