"""A transaction larger than the JVM's heap, from the SDK through a pump and Spark to MariaDB: in bounded memory, in one
downstream transaction, and through a drainer that is killed in the middle of it.

150 MiB with a heap of 512 MiB stands for 1 GiB with 2 GiB in all (bench.large measures that one).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pumpclient.errors import PayloadTooLarge
from pumpclient.sdk import BigInt, Column, Int, SyncService, Table, VarChar
from pumpclient.sdk.types import LongText
from tests.integration.drainer.large_case import Memory, watched
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import MariaDB, Server, free_port, python_module, require_java, running_etcd

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20
TEXT_BYTES = 128 << 10
WIDE_BYTES = 150 * MIB
WIDE = WIDE_BYTES // TEXT_BYTES
CHANGED = WIDE // 5
SMALL = 10_000


@dataclass
class World:
    cluster: Cluster
    mariadb: MariaDB
    service: SyncService
    directory: Path
    lives: int = 0

    def create(self) -> None:
        self.service.create_database("l")
        self.wide = self.service.create_table(
            "l", Table("wide", Column("id", BigInt(), primary_key=True), Column("body", LongText()))
        )
        self.keyed = self.service.create_table(
            "l",
            Table(
                "keyed",
                Column("id", BigInt(), primary_key=True),
                Column("u", Int(), nullable=False),
                unique={"by_u": ["u"]},
            ),
        )
        self.bag = self.service.create_table("l", Table("bag", Column("tag", VarChar(40))))

    def drainer(self, point: str = "") -> Server:
        self.lives += 1
        config = self.directory / "drainer.toml"
        config.write_text(
            f'pd-urls = "{self.cluster.url}"\ntso-source = "own"\nnode-id = "d1"\naddr = "127.0.0.1:{free_port()}"\n'
            f'status-addr = ""\ndata-dir = "{self.directory}/drainer"\ninitial-commit-ts = 0\n'
            '[syncer]\ndb-type = "mariadb"\n'
            f'[syncer.to]\nhost = "{self.mariadb.host}"\nport = {self.mariadb.port}\nuser = "{self.mariadb.user}"\n'
            f'password = "{self.mariadb.password}"\n'
            '[spark.conf]\n"spark.driver.memory" = "512m"\n'
        )
        output = self.directory / f"drainer-{self.lives}.log"
        env = {"BINLOG_CRASH_POINT": point} if point else {}
        return python_module("drainer", "-config", str(config), "--until-now", output=output, **env).start()

    def drain(self) -> Memory:
        drainer = self.drainer()
        assert drainer.process is not None
        with watched(drainer.process.pid) as memory:
            code = drainer.wait(deadline_s=300)
        assert code == 0, drainer.tail()
        assert len(set(re.findall(r"applying a large transaction.*commit_ts=(\d+)", drainer.text()))) == 2
        return memory

    def text(self, number: int) -> str:
        return f"{number:08d}" * (TEXT_BYTES // 8)

    def counts(self) -> list[int]:
        return [int(self.mariadb.query(f"SELECT COUNT(*) FROM l.{name}")[0][0]) for name in ("wide", "keyed", "bag")]


@pytest.fixture(scope="module")
def world(mariadb_server: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_java()
    mariadb_server.reset()
    directory = tmp_path_factory.mktemp("large")
    with running_etcd() as etcd, contextlib.ExitStack() as stack:
        cluster = Cluster(etcd, directory)
        stack.callback(cluster.add("p1").server.kill)
        # A transaction of this size keeps a busy machine for seconds, in which the lease may not be renewed.
        service = SyncService.connect(cluster.url, lease_ttl_s=120)
        stack.callback(service.close)
        made = World(cluster, mariadb_server, service, directory)
        made.create()
        yield made


def insert(world: World) -> None:
    with world.service.transaction() as txn:
        for number in range(WIDE):
            txn.insert(world.wide, {"id": number, "body": world.text(number)})
        for number in range(SMALL):
            txn.insert(world.keyed, {"id": number, "u": number})
        for number in range(SMALL):
            txn.insert(world.bag, {"tag": f"tag {number % 7}"})


def change(world: World) -> None:
    """Unique values go round through all rows, which only works in order; a table without a key loses some rows."""
    with world.service.transaction() as txn:
        for number in range(CHANGED):
            old = {"id": number, "body": world.text(number)}
            if number % 3:
                txn.update(world.wide, old=old, new={"id": number, "body": f"short {number}"})
            else:
                txn.delete(world.wide, old)
        txn.update(world.keyed, old={"id": 0, "u": 0}, new={"id": 0, "u": -1})
        for number in range(1, SMALL):
            txn.update(world.keyed, old={"id": number, "u": number}, new={"id": number, "u": number - 1})
        txn.update(world.keyed, old={"id": 0, "u": -1}, new={"id": 0, "u": SMALL - 1})
        for number in range(0, SMALL, 2):
            txn.delete(world.bag, {"tag": f"tag {number % 7}"})


def test_large_transactions_arrive_whole_in_bounded_memory_after_kill(world: World) -> None:
    """The first of two is applied when the drainer is killed; it has inserts, the other one changes of every kind."""
    insert(world)
    killed = world.drainer("drainer.mid_large:20")
    assert killed.wait(deadline_s=300) == -9, killed.tail()
    assert world.counts() == [0, 0, 0]
    change(world)
    memory = world.drain()
    assert world.counts() == [WIDE - (CHANGED + 2) // 3, SMALL, SMALL // 2]
    for wrong, given in (
        ("wide WHERE id >= %s AND body <> REPEAT(LPAD(id, 8, '0'), %s)", (CHANGED, TEXT_BYTES // 8)),
        ("wide WHERE id < %s AND body <> CONCAT('short ', id)", (CHANGED,)),
        ("keyed WHERE u <> (id + %s) %% %s", (SMALL - 1, SMALL)),
    ):
        assert world.mariadb.query(f"SELECT COUNT(*) FROM l.{wrong}", *given) == [(0,)]
    assert memory.peaks["JVM"] < 800 * MIB, memory.peaks
    assert memory.peaks["driver"] < 280 * MIB, memory.peaks
    # How many workers there are depends on how busy the machine is; the transaction would show in one of them.
    assert memory.largest.get("workers", 0) < WIDE_BYTES, memory


def test_transaction_too_large_for_every_pump_is_refused_at_commit(world: World) -> None:
    world.cluster.pumps["p1"].server.kill()
    pump = world.cluster.pumps["p1"]
    pump.server.argv = [*pump.server.argv, "-transaction-bytes-max", str(8 * MIB)]
    pump.start()
    before = world.counts()
    with pytest.raises(PayloadTooLarge, match="transaction-bytes-max"), world.service.transaction() as txn:
        for number in range(100):
            txn.insert(world.wide, {"id": 10_000_000 + number, "body": world.text(number)})
    assert world.counts() == before
