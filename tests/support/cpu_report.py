"""`--cpu-report N`: the N dearest tests by CPU, of this process and of every program that they started.

The kernel counts it in a group of processes (cgroup) where one can be made, which takes root: there a program counts
that was killed together with its parent, too. Elsewhere only those count that were waited for.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CGROUPS = ((Path("/sys/fs/cgroup/cpuacct"), "cpuacct.usage"), (Path("/sys/fs/cgroup"), "cpu.stat"))


def waited_for_s() -> float:
    """CPU of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def read_cgroup_s(file: Path) -> float:
    """Of `cpuacct.usage`, a number of nanoseconds, or `cpu.stat`, whose first line is `usage_usec N`."""
    words = file.read_text().split()
    return int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6


class CpuClock:
    """Counts this process and all that it starts, until it is closed."""

    def __init__(self) -> None:
        self._file: Path | None = None
        for root, name in CGROUPS:
            group = root / f"tests-{os.getpid()}"
            with contextlib.suppress(OSError, ValueError, IndexError):
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                read_cgroup_s(group / name)
                self._file = group / name
                return

    def now_s(self) -> float:
        return waited_for_s() if self._file is None else read_cgroup_s(self._file)

    def close(self) -> None:
        if self._file is not None:
            (self._file.parents[1] / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):  # a program of the tests may still be ending
                self._file.parent.rmdir()
            self._file = None


class Meter:
    """Measures in each process of xdist; the one that prints sums up."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._clock = CpuClock()
        self._begun = (0.0, 0.0)
        self._took: dict[str, tuple[float, float]] = {}

    def pytest_unconfigure(self) -> None:
        self._clock.close()

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), self._clock.now_s()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._begun = self._now()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """What a fixture of many tests takes counts for the first and the last of them."""
        try:
            yield
        finally:
            took = tuple(now - begun for now, begun in zip(self._now(), self._begun, strict=True))
            item.user_properties.append(("cpu-report", took))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == "cpu-report":
                    self._took[report.nodeid] = tuple(value)  # type: ignore[arg-type]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        modules: dict[str, tuple[float, float]] = {}
        for nodeid, (wall_s, cpu_s) in self._took.items():
            module = nodeid.split("::")[0]
            before = modules.get(module, (0.0, 0.0))
            modules[module] = (before[0] + wall_s, before[1] + cpu_s)
        wall_s, cpu_s = (sum(took[n] for took in self._took.values()) for n in (0, 1))
        terminalreporter.section(f"CPU: {cpu_s:.0f} s in {wall_s:.0f} s of tests")
        for what in (modules, self._took):
            terminalreporter.write_line("   CPU s    s")
            for name, took in sorted(what.items(), key=lambda entry: -entry[1][1])[: self._count]:
                terminalreporter.write_line(f"{took[1]:8.1f} {took[0]:7.1f}  {name}")
