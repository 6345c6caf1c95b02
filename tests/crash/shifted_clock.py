"""`python -m tests.crash.shifted_clock FILE MODULE …`: runs a module for which the wall clock is ahead by the seconds
that FILE says, read at every look at the clock. Clocks that count from the machine's start are left alone, as they are
by whoever sets a clock.

gRPC makes a deadline of a timeout in Python, and reads the same clock in C, where it is not shifted: so it keeps the
true one, as it would have one clock in both places."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from grpc.aio import _utils

SHIFT = Path(sys.argv[1])
_time_ns = time.time_ns


def time_ns() -> int:
    return _time_ns() + int(float(SHIFT.read_text()) * 1e9)


if __name__ == "__main__":
    assert _utils.time is time
    _utils.time = SimpleNamespace(time=time.time)  # type: ignore[assignment]
    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    del sys.argv[1]
    module = sys.argv.pop(1)
    sys.argv[0] = module
    runpy.run_module(module, run_name="__main__", alter_sys=True)
