"""One life of a drainer whose batches Spark's tasks write: the process that Spark's Python processes are forked from is
killed, the destination fails under the tasks, and in the end a service manager stops it.

Each test needs only that it runs, and gives it a part of the stream. Nothing may be lost or applied twice: tables with
a key would hide a repetition, and one of them has none.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

import pymysql
import pytest

from tests.integration.drainer.stubs import Stubs, running_stubs
from tests.integration.drainer.test_daemon import metric, reached, status
from tests.integration.drainer.test_signals import gone, name, stops_cleanly, temporary
from tests.integration.drainer.three_tables import COUNT, GOOD, after, drainer, serve, standing
from tests.support.processes import descendants
from tests.support.schema_case import ts
from tests.support.servers import MariaDB, Server, free_port, require_java, running_etcd, running_mariadb, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(900)]

PART = COUNT // 4
FORK_SERVER = "drainer.spark.startup.fork_server"
SLOT = re.compile(r"^batch: slot \d+ of .* gave up after \d+ s")
# Every try of a slot fails with it, and none of the driver's, which writes no row of a batch that is distributed.
DEADLOCK = (
    "CREATE TRIGGER d.deadlock BEFORE INSERT ON d.int_key FOR EACH ROW "
    "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'only slots fail'"
)


@dataclass
class Life:
    stubs: Stubs
    mariadb: MariaDB
    port: int
    running: Server
    served: int = PART
    forked: list[int] = field(default_factory=list)  # by a server that is no more

    def more(self) -> int:
        """The pumps serve another part of the stream; up to which ts."""
        self.served += PART
        end = ts(10 + self.served - 1)
        self.stubs.resolve(end)
        return end

    @property
    def process(self) -> int:
        assert self.running.process is not None
        return self.running.process.pid


@pytest.fixture(scope="module")
def life() -> Iterator[Life]:
    require_java()
    with running_etcd() as etcd, running_stubs(etcd) as stubs, running_mariadb() as mariadb:
        end, port = serve(stubs, GOOD, first=PART), free_port()
        temporary(stubs).mkdir()
        running = drainer(stubs, mariadb, port, TMPDIR=str(temporary(stubs)))
        reached(running, port, end)
        yield Life(stubs, mariadb, port, running)


def fork_server(life: Life) -> int:
    """What it forks has its command line, too, and is among its descendants."""

    def found() -> list[int]:
        """None where a process ended between two looks."""
        known = {pid: name(pid) for pid in descendants(life.process)}
        alike = {pid for pid, command in known.items() if FORK_SERVER in command and "supervisor.py" not in command}
        return [pid for pid in alike if alike <= {pid, *descendants(pid)}]

    (server,) = wait_until(found, what="the process that the others are forked from")
    return server


def test_drainer_goes_on_when_its_fork_server_is_killed(life: Life) -> None:
    server = fork_server(life)
    wait_until(lambda: len(descendants(server)) >= 3, what="the daemon, a worker, the stream reader")
    life.forked = descendants(server)
    os.kill(server, signal.SIGKILL)
    reached(life.running, life.port, life.more())
    gone([server])
    assert standing(life.mariadb) == after(life.served)


def answers(mariadb: MariaDB) -> bool:
    try:
        return bool(mariadb.query("SELECT 1"))
    except pymysql.OperationalError:
        return False


def test_status_shows_error_that_slots_are_retrying(life: Life) -> None:
    """First they fail alone; then the server is killed under them; then it is back, and nothing fails any more."""
    running, mariadb, port = life.running, life.mariadb, life.port
    mariadb.query(DEADLOCK)
    end = life.more()

    def error(*, deadlock: bool) -> bool:
        assert running.alive, running.tail()
        said = str(status(port)["Error"])
        return SLOT.match(said) is not None and ("only slots fail" in said) == deadlock

    wait_until(lambda: error(deadlock=True), deadline_s=120, what=f"a slot's reason\n{running.tail()}")

    found = status(port)
    assert int(str(found["ErrorTries"])) >= 3 and str(found["ErrorTime"])[:2] == "20", found
    wait_until(lambda: metric(port, "binlog_drainer_failing_seconds") > 0, deadline_s=120, what="the metric rises")
    mariadb.server.kill()
    wait_until(lambda: error(deadlock=False), deadline_s=120, what=f"the server is gone\n{running.tail()}")
    assert SLOT.match(str(status(port)["LastError"]))
    mariadb.server.start()
    wait_until(lambda: answers(mariadb), deadline_s=180, what=f"MariaDB is back\n{mariadb.server.tail()}")
    mariadb.query("DROP TRIGGER d.deadlock")
    reached(running, port, end)
    wait_until(lambda: status(port)["Error"] == "", deadline_s=120, what="nothing fails any more")
    # On a slow machine a failure of the driver itself, which finds its connection lost, may be the last one.
    assert status(port)["LastError"], "it stays"
    wait_until(lambda: metric(port, "binlog_drainer_failing_seconds") == 0, what="the metric falls")
    said = running.text()
    assert '["destination: trying again"]' in said and '["destination: it works again"]' in said, said
    assert standing(mariadb) == after(life.served)


def test_sigterm_to_process_group_stops_drainer_cleanly(life: Life) -> None:
    """`kill -TERM -pgid`, as a service manager does; the last test, for it ends that life. Other signals:
    test_signals.py, test_standby.py."""
    end = life.more()
    reached(life.running, life.port, end)
    stops_cleanly(life.stubs, life.running, [*descendants(life.process), *life.forked], signal.SIGTERM)
    assert standing(life.mariadb) == after(life.served)
