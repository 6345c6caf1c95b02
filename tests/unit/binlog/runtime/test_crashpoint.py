"""A named place kills the process, and only there, and only at its count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
from binlog.runtime.crashpoint import crash_point
for i in range(5):
    crash_point("other.place")
    crash_point("pump.after_append")
    print(i, flush=True)
"""


def run(value: str | None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "BINLOG_CRASH_POINT"}
    if value is not None:
        env["BINLOG_CRASH_POINT"] = value
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False)


def test_crash_point_does_nothing_without_variable() -> None:
    done = run(None)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1", "2", "3", "4"])


@pytest.mark.parametrize(("value", "printed"), [("pump.after_append", 0), ("pump.after_append:3", 2)])
def test_crash_point_kills_process_at_its_count(value: str, printed: int) -> None:
    done = run(value)
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == printed


def test_crash_point_with_invalid_count_is_refused() -> None:
    done = run("pump.after_append:x")
    assert done.returncode == 1
    assert "must be a number" in done.stderr
