"""CPU seconds and memory by program, from Linux's /proc: of a drainer's processes, of pumps, of a server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

DRIVER, JVM, WORKERS = "driver", "JVM", "Python workers"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name, which may contain spaces: utime, stime, and those of children that have
# ended.
_FIRST, _LAST = 11, 15
_FORK_SERVER = [b"-m", b"drainer.spark.startup.fork_server"]

Cpu = Mapping[str, float]


def process_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children that have ended; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[_FIRST:_LAST])) * _TICK_S
    return 0.0


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def drainer_pids(pid: int) -> dict[str, list[int]]:
    """Return the process ids of a drainer and its descendants, in groups: the JVM, Python processes below the JVM or
    the fork server, and everything else."""
    found: dict[str, list[int]] = {DRIVER: [], JVM: [], WORKERS: []}

    def add(pid: int, below_jvm: bool) -> None:
        with contextlib.suppress(OSError):
            is_jvm = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
            is_worker = below_jvm or Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == _FORK_SERVER
            found[WORKERS if is_worker else JVM if is_jvm else DRIVER].append(pid)
            for child in children(pid):
                add(child, is_worker or is_jvm)

    add(pid, False)
    return found


def drainer_s(pid: int) -> dict[str, float]:
    """Return the CPU seconds of the same groups."""
    return {name: sum_s(pids) for name, pids in drainer_pids(pid).items()}


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the memory of the processes; a page that several share counts once (proportional set size). Ended
    processes count 0.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def sum_s(pids: Iterable[int]) -> float:
    return sum(map(process_s, pids))


def between(before: Cpu, after: Cpu) -> dict[str, float]:
    """Return the seconds by program between two samples."""
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
