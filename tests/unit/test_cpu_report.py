"""What a test took, its programs with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cpu_report
from tests.support.cpu_report import CpuClock, read_cgroup_s, waited_for_s

BUSY = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.parametrize("text", ["2500000000\n", "usage_usec 2500000\nuser_usec 1\n"])
def test_cgroup_cpu_time_is_read_in_both_formats(tmp_path: Path, text: str) -> None:
    (tmp_path / "usage").write_text(text)
    assert read_cgroup_s(tmp_path / "usage") == 2.5


def test_cpu_of_child_process_counts_for_its_starter() -> None:
    before_s = waited_for_s()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert waited_for_s() - before_s >= 0.3


def test_cpu_clock_works_without_cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_report, "CGROUPS", ((tmp_path / "none", "cpu.stat"), (Path("/proc/self"), "cpu.stat")))
    clock = CpuClock()
    before_s = clock.now_s()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert clock.now_s() - before_s >= 0.3
    clock.close()
