"""Real pumps that are paused in order and come back under a running drainer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import NodeStatus, Registry, State

from pumpclient.sdk import BigInt, Column, SyncService, Table
from tests.integration.drainer.test_daemon import status
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import Etcd, Server, free_port, python_module, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass
class World:
    cluster: Cluster
    service: SyncService
    table: Table
    directory: Path
    port: int = field(default_factory=free_port)
    written: int = 0
    lives: int = 0

    def write(self, rows: int) -> None:
        for _ in range(rows):
            with self.service.transaction() as txn:
                txn.insert(self.table, {"id": self.written})
            self.written += 1

    def drainer(self) -> Server:
        self.lives += 1
        config = self.directory / "drainer.toml"
        config.write_text(
            f'pd-urls = "{self.cluster.url}"\ntso-source = "own"\nnode-id = "d1"\naddr = "127.0.0.1:{free_port()}"\n'
            f'status-addr = "127.0.0.1:{self.port}"\ndata-dir = "{self.directory}/drainer"\ninitial-commit-ts = 0\n'
            f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "{self.directory}/down.sqlite"\n'
        )
        output = self.directory / f"drainer-{self.lives}.log"
        server = python_module("drainer", "-config", str(config), output=output).start()
        server.wait_for_output("drainer is running", deadline_s=300)
        return server

    def rows(self) -> set[int]:
        try:
            with closing(sqlite3.connect(self.directory / "down.sqlite")) as connection:
                return {number for (number,) in connection.execute('SELECT id FROM "k.t"')}
        except sqlite3.OperationalError:
            return set()

    def arrived(self, drainer: Server, what: Callable[[], set[int]]) -> None:
        wait_until(
            lambda: what() <= self.rows(), deadline_s=240, what=f"rows arrive: {self.status()}\n{drainer.tail()}"
        )

    def everything(self) -> set[int]:
        return set(range(self.written))

    def status(self) -> dict[str, Any]:
        return status(self.port)

    def pump(self, node_id: str) -> dict[str, Any]:
        return next(pump for pump in self.status()["Pumps"] if pump["node"] == node_id)

    def record(self, node_id: str) -> NodeStatus:
        async def read() -> NodeStatus:
            etcd = connect_etcd([self.cluster.url])
            try:
                found = await Registry(etcd).get("pumps", node_id)
            finally:
                await etcd.close()
            assert found is not None
            return found.status

        return asyncio.run(read())


@contextmanager
def running_world(etcd: Etcd, directory: Path, *pumps: str) -> Iterator[World]:
    cluster = Cluster(etcd, directory)
    for name in pumps:
        cluster.add(name)
    service = SyncService.connect(cluster.url, tso_source="own")
    try:
        service.create_database("k")
        table = service.create_table("k", Table("t", Column("id", BigInt(), primary_key=True)))
        yield World(cluster, service, table, directory)
    finally:
        service.close()
        for pump in cluster.pumps.values():
            pump.server.kill()


@pytest.fixture
def world(etcd: Etcd, java: None, tmp_path: Path) -> Iterator[World]:
    with running_world(etcd, tmp_path, "p1", "p2") as made:
        yield made


def test_rule_1_paused_pump_does_not_hold_watermark(world: World) -> None:
    """Writing goes on while one pump after the other is away for a while, as in a rolling restart: everything arrives
    while it is away, what it takes when it is back arrives too, and nobody sees a commit below the watermark."""
    drainer = world.drainer()
    try:
        for away in ("p1", "p2"):
            pump = world.cluster.pumps[away]
            world.write(20)
            # A pump that stops waits a few seconds for its last rows to be read; a slow machine may need longer.
            world.arrived(drainer, world.everything)
            assert pump.server.stop() == 0, pump.server.tail()
            left = world.record(away)
            assert (left.state, left.final) == (State.PAUSED, True)
            assert left.max_commit_ts <= world.status()["Position"]
            world.write(20)
            world.arrived(drainer, world.everything)
            wait_until(lambda: world.status()["HeldBack"] == "", what="nothing holds the drainer back")
            assert not world.pump(away)["counts"]
            pump.start()
            wait_until(lambda away=away: world.pump(away)["counts"], what="it counts again")
        world.write(40)
        world.arrived(drainer, world.everything)
        assert all(not pump["missed"] and not pump["lateCommits"] for pump in world.status()["Pumps"])
        assert world.rows() == world.everything()
        assert drainer.stop(deadline_s=240) == 0, drainer.tail()
        assert "ALARM" not in drainer.text()
    finally:
        drainer.kill()
