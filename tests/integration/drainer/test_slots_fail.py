"""A destination that fails while only Spark's tasks write: they give up with the reason, and the driver writes the
batch again."""

from __future__ import annotations

import re

import pymysql
import pytest

from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import metric, reached, status
from tests.integration.drainer.three_tables import COUNT, GOOD, after, drainer, serve, standing
from tests.support.schema_case import ts
from tests.support.servers import MariaDB, free_port, running_mariadb, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

FIRST = 20
SLOT = re.compile(r"^batch: slot \d+ of .* gave up after \d+ s")
# Every try of a slot fails with it, and none of the driver's, which writes no row of a batch that is distributed.
DEADLOCK = (
    "CREATE TRIGGER d.deadlock BEFORE INSERT ON d.int_key FOR EACH ROW "
    "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'only slots fail'"
)


def answers(mariadb: MariaDB) -> bool:
    try:
        return bool(mariadb.query("SELECT 1"))
    except pymysql.OperationalError:
        return False


def test_status_shows_error_that_slots_are_retrying(stubs: Stubs) -> None:
    """First they fail alone; then the server is killed under them; then it is back, and nothing fails any more."""
    with running_mariadb() as mariadb:
        end = serve(stubs, GOOD, first=FIRST)
        port = free_port()
        running = drainer(stubs, mariadb, port)
        reached(running, port, end)
        mariadb.query(DEADLOCK)
        end = ts(10 + COUNT + 5)
        stubs.resolve(end)

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
        assert running.stop(deadline_s=240) == 0, running.tail()
        said = running.text()
        assert '["destination: trying again"]' in said and '["destination: it works again"]' in said, said
        assert standing(mariadb) == after(COUNT)
