"""The whole chain with real pumps, and the drainer killed where parts meet that no test of one part has together.

One etcd, two pumps, one writer and one MariaDB for all of it; before each life of the drainer a little is written.
What it must show (rules 15 to 18): each life goes on from the destination's position, and nothing is lost or applied
twice. Tables with a key would hide a repetition, so a table without one is written too, and triggers count.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.integration.drainer.lives import Lives
from tests.integration.drainer.writer import Writer, two_pumps
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import MariaDB, require_java, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

AUDIT = (
    "CREATE DATABASE audit",
    "CREATE TABLE audit.bag(tag VARCHAR(40), kind CHAR(1))",
    "CREATE TABLE audit.moves(n BIGINT AUTO_INCREMENT PRIMARY KEY, before_ts BIGINT, after_ts BIGINT)",
    "CREATE TRIGGER k.put AFTER INSERT ON k.bag FOR EACH ROW INSERT INTO audit.bag VALUES (NEW.tag, '+')",
    "CREATE TRIGGER k.take AFTER DELETE ON k.bag FOR EACH ROW INSERT INTO audit.bag VALUES (OLD.tag, '-')",
    "CREATE TRIGGER tidb_binlog.moved AFTER UPDATE ON tidb_binlog.drainer_position FOR EACH ROW"
    " INSERT INTO audit.moves(before_ts, after_ts) VALUES (OLD.commit_ts, NEW.commit_ts)",
)


@dataclass
class World(Lives):
    cluster: Cluster
    mariadb: MariaDB
    writer: Writer
    directory: Path
    lives: int = 0
    consistency: ClassVar[str] = "transaction"
    workers: ClassVar[str] = "worker-count = 3\n"

    @property
    def syncer(self) -> str:
        return (
            f'[syncer]\ndb-type = "mariadb"\nconsistency = "{self.consistency}"\ntxn-rows-max = 7\n{self.workers}'
            f'[syncer.to]\nhost = "{self.mariadb.host}"\nport = {self.mariadb.port}\nuser = "{self.mariadb.user}"\n'
            f'password = "{self.mariadb.password}"\nallow-triggers = true\n'
        )

    def moves(self) -> list[tuple[Any, ...]]:
        """The position before and after, each time it moved."""
        return self.mariadb.query("SELECT before_ts, after_ts FROM audit.moves ORDER BY n")

    def check(self) -> None:
        """Every row, the count of every row that was put and taken, and a position that moved without a gap."""
        writer = self.writer
        rows = self.mariadb.query("SELECT id, u, note FROM k.keyed ORDER BY id")
        assert rows == [(key, *row) for key, row in sorted(writer.keyed.items())]
        tags = self.mariadb.query("SELECT tag FROM k.bag ORDER BY tag")
        assert [tag for (tag,) in tags] == sorted(writer.bag)
        assert len(self.mariadb.query("DESCRIBE k.keyed")) == 3 + writer.added
        for kind, counted in (("+", writer.puts), ("-", writer.takes)):
            seen = self.mariadb.query(f"SELECT tag, COUNT(*) FROM audit.bag WHERE kind='{kind}' GROUP BY tag")
            assert dict(seen) == dict(counted), "rows were applied twice or not at all"
        for (_, earlier), (later, _) in itertools.pairwise(self.moves()):
            assert earlier == later


@pytest.fixture(scope="module")
def world(mariadb_server: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_java()
    mariadb_server.reset()
    directory = tmp_path_factory.mktemp("kills")
    with two_pumps(directory) as (cluster, writer):
        made = World(cluster, mariadb_server, writer, directory)
        made.writer.create()
        made.drain()
        for statement in AUDIT:
            mariadb_server.query(statement)
        yield made


def test_rows_are_applied_once_when_drainer_is_killed_and_stopped_reading_ahead(world: World) -> None:
    """Rules 15 to 17 in whole transactions: an executor dies, and the drainer with a batch that it has read ahead,
    which leaves no trace: its turn comes again. A drainer that is stopped in between ends its batch, drops the one
    behind it, and that is no error. In the next life a batch behind a DDL is not read before that has run. An executor
    that dies among rows: test_cluster.py; the other places of a batch: test_recording.py, and of a destination:
    tests/integration/sink."""
    writer = world.writer
    world.die_among_rows(["sink.after_chunk_commit"])
    world.die_among_rows(["drainer.after_read:3"], transactions=160)
    writer.write(300)
    for _ in range(3):
        writer.alter()
        writer.write(60)
    before = len(world.moves())
    drainer = world.drainer()
    wait_until(lambda: len(world.moves()) > before or not drainer.alive, deadline_s=300, what=drainer.tail())
    assert drainer.stop(deadline_s=240) == 0, drainer.tail()
    world.drain_and_check()


def test_snapshot_mends_destination_while_others_write(world: World) -> None:
    """Rows are missing and differ in a table with a further unique key, which other transactions exchange meanwhile."""
    writer, lock, written, done = world.writer, threading.Lock(), threading.Event(), threading.Event()
    writer.write(100)
    world.drain_and_check()
    world.mariadb.query("DELETE FROM k.keyed WHERE id % 3 = 0")
    world.mariadb.query("UPDATE k.keyed SET note = 'stale', u = -2 - u WHERE id % 3 = 1")
    end, recorded = len(writer.keyed), -1

    def others() -> None:
        while not done.is_set():
            with lock:
                writer.write(1)
            written.set()

    def pages() -> Iterator[list[dict[str, object]]]:
        nonlocal recorded
        for first in range(0, end, 30):
            with lock:
                yield [writer._row(key, writer.keyed[key]) for key in range(first, min(first + 30, end))]
                recorded = first
                written.clear()
            assert written.wait(60), "no other transaction"

    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert writer.service.snapshot(writer.keyed_table, pages()) == end
    finally:
        done.set()
        thread.join()
    assert recorded >= end - 30
    world.drain_and_check()
