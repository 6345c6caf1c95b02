"""Signals as a terminal and a service manager send them: to the whole process group. Nothing is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import CAPTURE, END, TABLES, configuration, counts, reached, record
from tests.support.processes import descendants
from tests.support.servers import Server, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]


def name(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return ""
    return command  # empty for a zombie


def started(stubs: Stubs) -> tuple[Server, list[int]]:
    """A drainer that has applied everything, and its descendants. Its temporary files are in `temporary`."""
    if not stubs.pumps:
        stubs.add("a").put(*CAPTURE.binlogs)
        stubs.resolve(END)
    place, port = temporary(stubs), free_port()
    place.mkdir(exist_ok=True)
    drainer = stubs.drainer(configuration(stubs, port), TMPDIR=str(place)).start()
    reached(drainer, port, END)
    assert drainer.process is not None
    top = drainer.process.pid

    def whole() -> list[int]:
        """Which it may not be yet where there was nothing to read."""
        found = descendants(top)
        commands = [name(pid) for pid in found]
        assert any("java" in command for command in commands), commands
        assert any("worker" in command or "daemon" in command for command in commands), commands
        return found

    return drainer, wait_until(whole, what=f"the JVM and a worker\n{drainer.tail()}")


def temporary(stubs: Stubs) -> Path:
    return stubs.directory / "tmp"


def gone(pids: list[int]) -> None:
    def left() -> list[str]:
        return [f"{pid} {name(pid)}" for pid in pids if name(pid)]

    wait_until(lambda: not left(), deadline_s=90, what=f"everything ended: {left()}")


def stops_cleanly(stubs: Stubs, drainer: Server, found: list[int], number: signal.Signals) -> None:
    assert drainer.process is not None
    os.killpg(drainer.process.pid, number)
    assert drainer.wait(deadline_s=240) == 0, drainer.tail()
    assert "drainer stopped" in drainer.text()
    assert "Traceback" not in drainer.text()
    assert record(stubs).status.state == "paused"
    gone(found)
    left = temporary(stubs)
    wait_until(lambda: not list(left.iterdir()), deadline_s=90, what=lambda: f"{list(left.rglob('*'))}")


def test_killed_drainer_leaves_no_process_and_files_for_next_one_to_remove(stubs: Stubs) -> None:
    """SIGKILL to the drainer alone: the JVM sees its standard input end, the workers their JVM. Then SIGHUP, as of a
    terminal that closes; SIGTERM: test_one_life.py; SIGINT, Ctrl-C: test_standby.py."""
    killed, found = started(stubs)
    assert killed.process is not None
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.wait()
    gone(found)
    assert counts(stubs) == TABLES
    (folder,) = temporary(stubs).iterdir()
    assert any(folder.glob("drainer-planner-*"))
    stops_cleanly(stubs, *started(stubs), signal.SIGHUP)
