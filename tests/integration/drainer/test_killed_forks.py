"""The process that Spark's Python processes are forked from is killed: a drainer that runs goes on, and
nothing is lost or applied twice. Tables with a key would hide a repetition; one of them has none."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import reached
from tests.integration.drainer.test_signals import gone, name
from tests.integration.drainer.three_tables import COUNT, GOOD, after, drainer, serve, standing
from tests.support.processes import descendants
from tests.support.schema_case import ts
from tests.support.servers import MariaDB, Server, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(900)]

FORK_SERVER = "drainer.spark.startup.fork_server"
HALF = COUNT // 2


def fork_server(running: Server) -> int:
    """What it forks has its command line, too, and is among its descendants."""
    assert running.process is not None
    top = running.process.pid

    def found() -> list[int]:
        """None where a process ended between two looks."""
        known = {pid: name(pid) for pid in descendants(top)}
        alike = {pid for pid, command in known.items() if FORK_SERVER in command and "supervisor.py" not in command}
        return [pid for pid in alike if alike <= {pid, *descendants(pid)}]

    (server,) = wait_until(found, what="the process that the others are forked from")
    return server


def test_a_drainer_goes_on_without_them(stubs: Stubs, mariadb: MariaDB) -> None:
    mariadb.reset()
    port = free_port()
    half = serve(stubs, GOOD, first=HALF)
    running = drainer(stubs, mariadb, port)
    reached(running, port, half)
    server = fork_server(running)
    wait_until(lambda: len(descendants(server)) >= 3, what="the daemon, a worker, the stream reader")
    forked = descendants(server)
    os.kill(server, signal.SIGKILL)
    end = ts(10 + COUNT + 5)
    stubs.resolve(end)
    reached(running, port, end)
    gone([server])
    assert running.process is not None
    left = descendants(running.process.pid)
    assert running.stop(deadline_s=240) == 0, running.tail()
    assert standing(mariadb) == after(COUNT)
    gone([*left, *forked])
