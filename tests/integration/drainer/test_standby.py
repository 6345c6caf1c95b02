"""Drainers that wait to take over from one another."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from binlog import envelope
from binlog.cluster.registry import State

from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import (
    CAPTURE,
    END,
    TABLES,
    configuration,
    counts,
    drainer_address,
    reached,
    record,
    status,
)
from tests.integration.drainer.test_signals import stops_cleanly, temporary
from tests.support.processes import descendants
from tests.support.servers import Server, free_port, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


def started(stubs: Stubs, number: int, said: str) -> tuple[Server, int]:
    """A drainer, and the port of its page."""
    port = free_port()
    text = configuration(stubs, port, more="standby = true")
    temporary(stubs).mkdir(exist_ok=True)
    place = str(temporary(stubs))
    drainer = stubs.drainer(text, "-data-dir", f"{stubs.directory}/data-{number}", TMPDIR=place).start()
    drainer.wait_for_output(said, deadline_s=300)
    return drainer, port


def shares() -> list[list[bytes]]:
    """The recording in three shares, one after the other."""
    binlogs = sorted(CAPTURE.binlogs, key=lambda payload: envelope.scan(payload).commit_ts)
    third = len(binlogs) // 3
    return [binlogs[:third], binlogs[third : 2 * third], binlogs[2 * third :]]


def give(stubs: Stubs, binlogs: list[bytes]) -> None:
    stubs.pumps["a"].put(*binlogs)
    stubs.resolve(envelope.scan(binlogs[-1]).commit_ts)


def test_standby_takes_over_from_killed_and_from_stopped_drainer(stubs: Stubs) -> None:
    """Nothing is lost and nothing comes twice; the page, /status and binlogctl name who waits. The last one gets
    Ctrl-C in a terminal; other signals: test_signals.py."""
    thirds = shares()
    stubs.add("a")
    give(stubs, thirds[0])
    first, first_port = started(stubs, 1, "drainer is running")
    second, second_port = started(stubs, 2, "waiting to take over")
    at = drainer_address(second)
    wait_until(lambda: status(first_port)["Standbys"] == [at], deadline_s=60, what="the first one names the second")
    assert status(second_port)["Phase"] == f"standby of {drainer_address(first)}"
    listed = subprocess.run(
        [sys.executable, "-m", "pumpclient.ctl", "-pd-urls", stubs.etcd.endpoint, "-cmd", "drainers", "-o", "table"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert "STANDBY" in listed, listed
    assert at in listed, listed

    first.kill()
    give(stubs, thirds[1])
    second.wait_for_output("drainer is running", deadline_s=120)

    third_one, third_port = started(stubs, 3, "waiting to take over")
    assert second.stop(deadline_s=240) == 0, second.tail()
    give(stubs, thirds[2])
    stubs.resolve(END)
    third_one.wait_for_output("drainer is running", deadline_s=120)
    reached(third_one, third_port, END)
    assert counts(stubs) == TABLES
    assert record(stubs).status.state is State.ONLINE
    assert third_one.process is not None
    stops_cleanly(stubs, third_one, descendants(third_one.process.pid), signal.SIGINT)
