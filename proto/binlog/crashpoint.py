"""Named places where a test may kill the process: BINLOG_CRASH_POINT=name[:n] dies by SIGKILL at the nth passing."""

from __future__ import annotations

import os
import signal

_name, _, _count = os.environ.get("BINLOG_CRASH_POINT", "").partition(":")
_left = int(_count or "1") if _name else 0


def crash_point(name: str) -> None:
    """Do nothing, unless this is the point the environment names."""
    global _left
    if _name != name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
