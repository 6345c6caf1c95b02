"""A server that goes away: waited for with a bound, and nothing lost or doubled when it is back."""

from __future__ import annotations

import threading

import pytest

from drainer.batch.work import Folded, Kind
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import IDENTITY, change, opened, put, server_config, shape, work
from tests.integration.sink.test_mysql_distributed import intent
from tests.support.servers import free_port, running_mariadb

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_unreachable_server_is_reported_after_retry_for() -> None:
    """Not for ever: the caller decides what comes after."""
    port = free_port()
    destination = MySQLSink(ServerConfig(port=port, retry_for_s=0.3))
    with pytest.raises(DestinationDown, match=f"127.0.0.1:{port}: gave up after"):
        destination.open(IDENTITY, 100)


def test_wrong_password_is_refused_without_retry() -> None:
    with running_mariadb() as mariadb:
        config = server_config(mariadb, password="secret-and-wrong")
        with pytest.raises(DestinationRefused, match="1045") as caught:
            MySQLSink(config).open(IDENTITY, 100)
        assert "secret-and-wrong" not in str(caught.value) + repr(config)
        with pytest.raises(DestinationRefused, match="rejects the session variable no_such"):
            MySQLSink(server_config(mariadb, params=(("no_such", "1"),))).open(IDENTITY, 100)


def test_rows_are_applied_once_after_killed_server_restarts() -> None:
    """SIGKILL to the server between segments and chunks, in the driver and distributed; keyless rows would show a
    double."""
    with running_mariadb() as mariadb:
        mariadb.query("CREATE DATABASE d")
        mariadb.query("CREATE TABLE d.k (n INT)")
        mariadb.query("CREATE TABLE d.p (id INT PRIMARY KEY)")
        k, p = shape("k", "n", key=()), shape("p", "id")
        destination = opened(mariadb, retry_for_s=240.0)
        done: list[object] = []

        def rows(after: int) -> None:
            inserts = [change(k, Kind.INSERT, new=str(after), ts=after + 1, seq=n) for n in range(7)]
            destination.apply(work(after, after + 100, Folded(p, (put(after, b"(%d)" % after),)), ordered=inserts), 1)
            done.append(after)

        rows(100)
        mariadb.server.kill()
        thread = threading.Thread(target=rows, args=(200,))
        thread.start()
        mariadb.server.start()
        thread.join(300)
        range_ = intent(300, 400)
        target = destination.begin(range_)
        mariadb.server.kill()
        slot = work(300, 400, ordered=[change(k, Kind.INSERT, new="300", ts=301, seq=n) for n in range(7)])
        thread = threading.Thread(target=lambda: done.append(target.write(0, slot)))
        thread.start()
        mariadb.server.start()
        thread.join(300)
        assert destination.commit(range_, [], 1) is None
        assert len(done) == 3
        counted = mariadb.query("SELECT n, COUNT(*) FROM d.k GROUP BY n ORDER BY n")
        assert counted == [(100, 7), (200, 7), (300, 7)]
        assert mariadb.query("SELECT commit_ts, intent FROM tidb_binlog.drainer_position") == [(400, None)]


def test_retry_for_server_ends_when_interrupted() -> None:
    """A stop signal must not wait for a server that is away, nor a clean end for upstream's checkpoint."""
    with running_mariadb() as mariadb:
        destination = opened(mariadb, retry_for_s=600.0)
        mariadb.server.kill()
        errors: list[str] = []

        def advance() -> None:
            try:
                destination.advance(200, 1)
            except DestinationDown as error:
                errors.append(str(error))

        thread = threading.Thread(target=advance)
        thread.start()
        destination.interrupt()
        thread.join(300)
        assert len(errors) == 1
        assert "told to stop" in errors[0]
        destination.close(clean=True)
