"""Starts that cannot succeed: one clear line, an exit code, and no deaf minute."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry

from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import BEGIN, END, configuration
from tests.integration.drainer.test_signals import gone
from tests.support.kafka import Broker
from tests.support.processes import descendants
from tests.support.servers import Server, free_port, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

GIVEN_UP = "All masters are unresponsive! Giving up."  # in Spark's log, after a minute


def failed(drainer: Server, code: int, *texts: str) -> None:
    assert drainer.wait(deadline_s=240) == code, drainer.tail()
    text = drainer.text()
    assert "Traceback" not in text
    assert "unexpected error" not in text
    last = text.strip().splitlines()[-1]
    assert "[ERROR]" in last or last.startswith("drainer: "), last
    assert all(part in last for part in texts), last


@pytest.mark.slow
def test_start_with_unreachable_master_fails_with_one_line(stubs: Stubs) -> None:
    stubs.add("a")
    stubs.resolve(END)
    drainer = stubs.drainer(configuration(stubs, free_port()), "--master", "spark://127.0.0.1:1").start()
    failed(drainer, 2, "no Spark master answers at spark://127.0.0.1:1", "Connection refused")
    assert not (stubs.directory / "data" / "spark.log").exists()


@contextmanager
def silent_master() -> Iterator[tuple[int, list[socket.socket]]]:
    """Takes connections and says nothing."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], taken
        server.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


def registered(stubs: Stubs) -> bool:
    async def read() -> bool:
        etcd = connect_etcd([stubs.etcd.endpoint])
        try:
            return await Registry(etcd).get("drainers", "d1") is not None
        finally:
            await etcd.close()

    return asyncio.run(read())


@pytest.mark.slow
def test_signal_ends_start_waiting_for_master(stubs: Stubs) -> None:
    stubs.add("a")
    stubs.resolve(END)
    with silent_master() as (port, taken):
        drainer = stubs.drainer(configuration(stubs, free_port()), "--master", f"spark://127.0.0.1:{port}").start()
        # The first is the drainer's own question, the second the JVM's.
        wait_until(lambda: len(taken) >= 2, deadline_s=120, what=f"the JVM connects\n{drainer.tail()}")
        # Which comes first, this or everything that is done beside it, nobody knows.
        wait_until(lambda: registered(stubs), deadline_s=120, what=f"the drainer is registered\n{drainer.tail()}")
        assert drainer.process is not None
        left = descendants(drainer.process.pid)
        os.kill(drainer.process.pid, signal.SIGTERM)
        assert drainer.wait(deadline_s=240) == 0, drainer.tail()
        assert GIVEN_UP not in (stubs.directory / "data" / "spark.log").read_text()
        assert "Traceback" not in drainer.text()
        assert "drainer stopped" in drainer.text()
        gone(left)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("spark.driver.memory", "1q", "spark.log"),  # no JVM
        ("spark.executor.memory", "100m", "Executor memory 104857600 must be at least 471859200. Please increase"),
    ],
)
def test_spark_start_failure_is_one_line_naming_its_log(stubs: Stubs, setting: str, value: str, why: str) -> None:
    stubs.add("a")
    stubs.resolve(END)
    more = f'[spark]\nconf = {{"{setting}" = "{value}"}}\n'
    drainer = stubs.drainer(configuration(stubs, free_port()) + more).start()
    failed(drainer, 2, "Spark did not start, see ", "spark.log", why)


@pytest.mark.parametrize(
    ("below", "why"), [("", "a file of that name exists"), ("below", "a file has the name of one of its parents")]
)
def test_unusable_data_dir_fails_with_one_line(stubs: Stubs, below: str, why: str) -> None:
    place = stubs.directory / "taken"
    place.write_text("")
    wanted = place / below
    drainer = stubs.drainer(configuration(stubs, free_port()), "-data-dir", str(wanted)).start()
    failed(drainer, 1, f"data-dir {wanted} cannot be used: {why}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_data_dir_without_rights_fails_with_one_line(stubs: Stubs, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    drainer = stubs.drainer(configuration(stubs, free_port()), "-data-dir", str(tmp_path / "data")).start()
    failed(drainer, 1, f"data-dir {tmp_path / 'data'} cannot be used: Permission denied")
    tmp_path.chmod(0o700)


def test_signal_ends_start_waiting_for_etcd(stubs: Stubs) -> None:
    with silent_master() as (port, taken):
        settings = configuration(stubs, free_port())
        drainer = stubs.drainer(settings, "-pd-urls", f"http://127.0.0.1:{port}").start()
        wait_until(lambda: len(taken) >= 1, deadline_s=180, what=f"a connection\n{drainer.tail()}")
        assert drainer.process is not None
        os.kill(drainer.process.pid, signal.SIGTERM)
        assert drainer.wait(deadline_s=240) == 0, drainer.tail()
        assert "stopped before etcd was reached" in drainer.text()


@pytest.mark.slow
def test_failed_start_ends_its_jvm(stubs: Stubs) -> None:
    """The JVM starts beside the DDL history, which here turns out to be missing. On a busy machine the drainer may end
    before anybody saw the JVM: then another start is watched."""
    stubs.add("a")
    stubs.resolve(END)
    settings = configuration(stubs, free_port()).replace("history.json", "absent.json")
    seen: set[int] = set()
    for _ in range(5):
        drainer = stubs.drainer(settings).start()
        assert drainer.process is not None
        while drainer.alive:
            seen.update(descendants(drainer.process.pid))
            time.sleep(0.02)
        failed(drainer, 2, "absent.json")
        gone(sorted(seen))
        if seen:
            return
    pytest.fail("in five starts nobody saw the JVM")


@pytest.mark.slow
def test_column_selector_that_leaves_table_without_key_fails_start(stubs: Stubs, kafka: Broker) -> None:
    """Before any of its rows comes, and before Spark is there: an error of the configuration."""
    stubs.add("a")
    stubs.resolve(END)
    given = configuration(stubs, free_port()).replace(f"initial-commit-ts = {BEGIN}", f"initial-commit-ts = {END}")
    uri = f"kafka://{kafka.address}/{kafka.topic(1)}?protocol=open-protocol"
    begin, _, _ = given.partition("[syncer]")
    selectors = '[[syncer.to.column-selectors]]\nmatcher = ["*.*"]\ncolumns = ["no_such_column"]\n'
    rules = '[[syncer.to.dispatchers]]\nmatcher = ["*.*"]\npartition = "rowid"\n'
    syncer = f'[syncer]\ndb-type = "kafka"\n[syncer.to]\nsink-uri = "{uri}"\nmax-retry = 3\n{selectors}{rules}'
    drainer = stubs.drainer(begin + syncer).start()
    drainer.wait(deadline_s=500)  # a broker that has just started makes its coordinator first
    failed(drainer, 1, "the column selector for *.* (no_such_column) leaves no column of it")
    text = drainer.text()
    assert "a failed request is repeated until retry-for has passed" in text
    assert "partition 'rowid' is an old name" in text
