"""deploy/compose/join.yaml at a real PD and TiDB, as processes. A desk test: skipped without PEER_BIN, in CI too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.integration.deploy.test_compose import COMPOSE, ready
from tests.integration.test_peer import UTF8, wait_equal
from tests.peer.cluster import Peer
from tests.peer.load import CALM_DDLS, prepare, running_load
from tests.peer.marks import desk_test
from tests.support.compose import Processes
from tests.support.servers import MariaDB, require_java, running_mariadb, wait_until

pytestmark = desk_test(900)


@pytest.fixture
def destination() -> Iterator[MariaDB]:
    """A copy of a TiDB that has just begun; with the user of join-drainer.toml, who may do what compose.yaml's may."""
    with running_mariadb(*UTF8) as server:
        server.query("CREATE DATABASE IF NOT EXISTS test")
        for statement in (COMPOSE / "mariadb.sql").read_text().split(";\n"):
            if statement.strip():
                server.query(statement.replace("IDENTIFIED BY 'drainer'", "IDENTIFIED BY 'change-me'"))
        yield server


def machine(peer: Peer, destination: MariaDB, name: str, service: str) -> Processes:
    """One that runs this service; others reach it by the service's name."""
    directory = peer.directory / name
    directory.mkdir()
    status_port = urlsplit(peer.history_url).port
    assert status_port is not None
    return Processes(
        COMPOSE / "join.yaml",
        directory,
        given={("10.0.0.2", 10080): status_port, ("10.0.0.7", 3306): destination.port},
        variables={"PD_URLS": peer.pd_url, "ADVERTISE_HOST": service},
    )


def test_two_pumps_and_drainer_of_join_compose_replicate_a_tidb(peer: Peer, destination: MariaDB) -> None:
    require_java()
    with contextlib.ExitStack() as stack:
        pumps = [machine(peer, destination, name, "pump") for name in ("machine-1", "machine-2")]
        drainer = machine(peer, destination, "machine-3", "drainer")
        for one in (*pumps, drainer):
            stack.callback(one.kill)
        for one in pumps:
            one.start("pump")
            wait_until(lambda one=one: ready(one, "pump", 9250), deadline_s=120, what="the pump is ready")  # type: ignore[misc]
        peer.start_tidb()
        drainer.start("drainer")
        wait_until(lambda: ready(drainer, "drainer", 9249), deadline_s=180, what="the drainer is ready")
        with contextlib.closing(peer.connect()) as connection:
            prepare(connection)
        with running_load(peer.connect, pause_s=0.1) as load:
            load.define(CALM_DDLS)
        assert load.failed_ddls == []
        wait_equal(peer, destination)
        assert drainer.servers["drainer"].stop(deadline_s=240) == 0
        assert set(peer.pump_states().values()) == {"online"}
