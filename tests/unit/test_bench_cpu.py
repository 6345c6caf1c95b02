"""CPU by program, which `bench.drainer --profile` prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import cpu
from tests.support.servers import wait_until

# The kernel counts by ticks, and may see less than the process does.
BUSY_S = 0.3
BUSY = "import sys, time\nwhile time.process_time() < 0.5: pass\n"
# A JVM, as far as the counting can tell, with one Python below it; and an ended child of its own.
PARENT = f"""
import ctypes, subprocess, sys
subprocess.run([sys.executable, "-c", {BUSY!r}])
if sys.argv[1] == "java":
    ctypes.CDLL(None).prctl(15, b"java", 0, 0, 0)
child = subprocess.Popen([sys.executable, "-c", {BUSY!r} + "sys.stdin.read()"], stdin=subprocess.PIPE)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(name: str) -> Iterator[int]:
    argv = [sys.executable, "-c", PARENT, name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_cpu_of_ended_child_counts_for_its_parent() -> None:
    with running("python") as pid:
        assert cpu.process_s(pid) >= BUSY_S
    assert cpu.process_s(pid) == 0.0


def test_drainer_cpu_is_split_by_program() -> None:
    with running("java") as pid:
        wait_until(lambda: cpu.drainer_s(pid)[cpu.WORKERS] >= BUSY_S, what="the child's CPU")
        found = cpu.drainer_s(pid)
    assert found[cpu.JVM] >= BUSY_S
    assert found[cpu.DRIVER] == 0.0


def test_cpu_between_two_samples_is_their_difference() -> None:
    before = cpu.drainer_s(os.getpid())
    begin = time.process_time()
    while time.process_time() < begin + 0.5:
        pass
    found = cpu.between(before, cpu.drainer_s(os.getpid()))
    assert BUSY_S <= found[cpu.DRIVER] < 60
    assert cpu.between({}, {"pumps": 1.5}) == {"pumps": 1.5}
