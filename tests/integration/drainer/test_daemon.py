"""The drainer as a process: a clean stop, its services, what it does while pumps come and go, and how it fails."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing

import grpc
import pytest
from binlog import envelope
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import NodeRecord, Registry, State
from binlog.pb import cistern_pb2
from binlog.runtime.channel import stub_of

from tests.integration.drainer.stubs import Stubs
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.servers import ROOT, Server, free_port, running_mariadb, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CAPTURE = CaptureSet(GOLDEN / "keys")
BEGIN, END = CAPTURE.meta["scenario_start_ts"], CAPTURE.meta["scenario_end_ts"]
TABLES = {name: len(table["rows"]) for name, table in CAPTURE.tables().items() if "rows" in table}


def configuration(stubs: Stubs, status_port: int, *, more: str = "") -> str:
    history = stubs.directory / "history.json"
    history.write_bytes(CAPTURE.jobs_text)
    return (
        f'initial-commit-ts = {BEGIN}\nstatus-addr = "127.0.0.1:{status_port}"\n{more}\n'
        f'[schema]\nhistory-file = "{history}"\n'
        f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "{stubs.directory}/down.sqlite"\n'
    )


def status(port: int) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def counts(stubs: Stubs) -> dict[str, int]:
    with closing(sqlite3.connect(stubs.directory / "down.sqlite")) as connection:
        return {name: connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in TABLES}


def record(stubs: Stubs) -> NodeRecord:
    async def read() -> NodeRecord | None:
        etcd = connect_etcd([stubs.etcd.endpoint])
        try:
            return await Registry(etcd).get("drainers", "d1")
        finally:
            await etcd.close()

    found = asyncio.run(read())
    assert found is not None
    return found


def reached(drainer: Server, port: int, ts: int) -> None:
    def there() -> bool:
        assert drainer.alive, drainer.tail()
        last = status(port)["LastTS"]
        return isinstance(last, int) and last >= ts

    wait_until(there, deadline_s=300, what=f"position {ts}\n{drainer.tail()}")


def test_daemon_applies_rows_serves_its_pages_and_stops_cleanly_on_sigterm(stubs: Stubs) -> None:
    """Two of our pumps and a Go pump; rows arrive, the services answer, pulls that break off are begun again, SIGTERM
    stops it with exit code 0, state `paused` and its position registered."""
    stubs.add("a")
    stubs.add("b")
    stubs.add("go", extension=False)
    port = free_port()
    stubs.share(CAPTURE.binlogs)
    stubs.pumps["a"].failing_pulls = 6  # more than Spark tries a task
    stubs.resolve(END)
    # What the Go pump sent last is all it promises: a second copy of the last transaction (rule 19).
    stubs.pumps["go"].put(CAPTURE.binlogs[-1])
    # The Go pump here sends no fakes, and on a busy machine the pulls that break off take long.
    drainer = stubs.drainer(configuration(stubs, port, more="go-pump-silence-max = 120")).start()
    drainer.wait_for_output("drainer is running", deadline_s=300)
    assert record(stubs).status.state is State.ONLINE
    reached(drainer, port, envelope.scan(CAPTURE.binlogs[-1]).commit_ts)
    assert counts(stubs) == TABLES
    found = status(port)
    assert set(found["PumpPos"]) == {"a", "b", "go"}  # type: ignore[call-overload]
    assert found["Duplicates"] == 1
    notify(drainer)
    for place in (f"127.0.0.1:{port}", drainer_address(drainer)):
        with urllib.request.urlopen(f"http://{place}/metrics", timeout=60) as answer:
            assert b"binlog_drainer_checkpoint_tso" in answer.read()
    assert drainer.stop(deadline_s=240) == 0, drainer.tail()
    left = record(stubs).status
    assert left.state is State.PAUSED
    assert left.max_commit_ts == status_position(stubs)


def notify(drainer: Server) -> None:
    """What a Go pump asks of every drainer when it starts."""
    with grpc.insecure_channel(drainer_address(drainer)) as channel:
        stub_of(channel, cistern_pb2.DESCRIPTOR, "Cistern").Notify(cistern_pb2.NotifyReq(), timeout=60)


def drainer_address(drainer: Server) -> str:
    config = drainer.argv[list(drainer.argv).index("-config") + 1]
    for line in open(config):  # noqa: SIM115,PTH123  one line of a small file
        if line.startswith("addr"):
            return line.split('"')[1]
    raise AssertionError(config)


def status_position(stubs: Stubs) -> int:
    with closing(sqlite3.connect(stubs.directory / "down.sqlite")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%position%'")]
        return int(connection.execute(f'SELECT commit_ts FROM "{tables[0]}"').fetchone()[0])


def test_silent_pump_holds_position_until_it_is_offline_and_binlogctl_pauses_drainer(stubs: Stubs) -> None:
    """Rule 8 and the architecture page: which pump, since when; forced offline, the others go on. Then the drainer is
    paused at status-addr. At the address of gRPC, as the original's binlogctl does it, and taken offline:
    test_peer_migration.py. A pump of ours, which tells in the same way where its page is: tests of the pump."""
    stubs.add("a").put(*CAPTURE.binlogs)
    stubs.resolve(END)
    stubs.register("dead", State.ONLINE)
    port = free_port()
    drainer = stubs.drainer(configuration(stubs, port)).start()
    drainer.wait_for_output("drainer is running", deadline_s=300)
    wait_until(lambda: "dead" in str(status(port)["HeldBack"]), deadline_s=180, what=drainer.tail())
    assert status(port)["Position"] == BEGIN
    stubs.register("dead", State.OFFLINE)
    reached(drainer, port, END)
    # A survey that a slow machine answers late holds it back for a moment.
    wait_until(lambda: status(port)["HeldBack"] == "", what="nothing holds it back any more")
    words = ("pause-drainer", "-node-id", "d1", "-pd-urls", stubs.etcd.endpoint)
    asked = subprocess.run([sys.executable, "-m", "pumpclient.ctl", *words], cwd=ROOT, capture_output=True, check=False)
    assert asked.returncode == 0, asked
    assert drainer.wait(deadline_s=240) == 0, drainer.tail()
    left = record(stubs).status
    assert (left.state, left.max_commit_ts) == (State.PAUSED, status_position(stubs))
    again = subprocess.run([sys.executable, "-m", "pumpclient.ctl", *words], cwd=ROOT, capture_output=True, check=False)
    assert again.returncode == 5 and b"does not answer" in again.stdout + again.stderr


def test_unreachable_destination_is_shown_and_retried(stubs: Stubs) -> None:
    """In /status, on the page and as a metric, with its text and since when, until it is back."""
    stubs.add("a").put(*CAPTURE.binlogs)
    stubs.resolve(BEGIN)
    port = free_port()
    with running_mariadb() as mariadb:
        config = configuration(stubs, port).split("[syncer]")[0]
        config += '[syncer]\ndb-type = "mariadb"\n[syncer.to]\n'
        config += f'host = "{mariadb.host}"\nport = {mariadb.port}\n'
        config += f'user = "{mariadb.user}"\npassword = "{mariadb.password}"\n'
        mariadb.server.kill()
        drainer = stubs.drainer(config).start()
        wait_until(lambda: status(port)["Error"], deadline_s=180, what=drainer.tail())
        assert status(port)["Phase"] == "opening the destination"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert b"Failing since" in answer.read()
        notify(drainer)  # a Go pump can start, whatever the destination does
        mariadb.server.start()
        drainer.wait_for_output("drainer is running", deadline_s=300)
        assert status(port)["Error"] == ""
        wait_until(lambda: status(port)["Phase"] == "", what="it is known that there is nothing to apply")
        mariadb.server.kill()
        stubs.resolve(END)
        wait_until(lambda: status(port)["Error"], deadline_s=180, what=drainer.tail())
        found = status(port)
        assert str(mariadb.port) in str(found["Error"]) and int(str(found["ErrorTries"])) >= 3, found
        assert str(found["ErrorTime"])[:2] == "20"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert b"Failing since" in answer.read()
        wait_until(lambda: metric(port, "binlog_drainer_failing_seconds") > 0, what="the metric rises")
        mariadb.server.start()
        reached(drainer, port, END)
        wait_until(lambda: status(port)["Error"] == "", what="nothing fails any more")
        assert str(mariadb.port) in str(status(port)["LastError"])
        wait_until(lambda: metric(port, "binlog_drainer_failing_seconds") == 0, what="the metric falls")
        assert drainer.stop(deadline_s=240) == 0, drainer.tail()


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_missing_java_exits_with_2_and_names_package(stubs: Stubs) -> None:
    drainer = stubs.drainer(configuration(stubs, free_port()), JAVA_HOME="/nowhere").start()
    assert drainer.wait(deadline_s=240) == 2
    assert "openjdk-17-jre-headless" in drainer.text()
    assert "Traceback" not in drainer.text()


@pytest.mark.slow
def test_purged_position_exits_with_2_instead_of_skipping(stubs: Stubs) -> None:
    pump = stubs.add("a")
    pump.put(*CAPTURE.binlogs)
    pump.purged_ts = BEGIN + 1
    stubs.resolve(END)
    drainer = stubs.drainer(configuration(stubs, free_port())).start()
    assert drainer.wait(deadline_s=300) == 2
    assert "may be gone" in drainer.text()
