"""Named crash points at which a test can kill this process, as a power failure would.

With `BINLOG_CRASH_POINT=pump.after_append:3` in the environment, the process gets SIGKILL when it reaches that point
for the third time. Without the variable, a crash point costs a function call and does nothing.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BINLOG_CRASH_POINT"


def _parse(text: str) -> tuple[str, int]:
    name, _, count = text.partition(":")
    if count and not count.isdigit():
        raise ValueError(f"{VARIABLE}={text!r}: what follows the colon must be a number")
    return name, int(count or 1)


_name, _left = _parse(os.environ.get(VARIABLE, ""))


def crash_point(name: str) -> None:
    """Send SIGKILL to this process if this crash point is selected and its count is reached."""
    global _left
    if name != _name:
        return
    _left -= 1
    if _left <= 0:
        os.write(2, f"crash point {name} reached\n".encode())  # the parent process shows it
        os.kill(os.getpid(), signal.SIGKILL)
