"""Two real TiDBs that replicate each other (loopback-control). A desk test: skipped without PEER_BIN, in CI too.

One of our drainers in each direction, or ours in one and the original's in the other, one after the other in the same
two clusters. Two or three minutes.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB, Server, free_port, wait_until

pytestmark = desk_test(900)
CHANNEL = 7
LOOPBACK = f"loopback-control = true\nchannel-id = {CHANNEL}"
FOLLOWS = f"{LOOPBACK}\nsync-ddl = false"
BIG = 5_000  # rows of a kilobyte: a large transaction
EVERYTHING = "SELECT id, origin, v, LENGTH(filler) FROM app.t ORDER BY id"


@dataclass
class Site:
    """A cluster with one pump, and its TiDB as a destination."""

    peer: Peer
    tidb: MariaDB

    def rows(self) -> list[tuple[Any, ...]]:
        return self.tidb.query(EVERYTHING)

    def marks(self) -> int:
        """How many transactions of the channel this TiDB has."""
        found = self.tidb.query(f"SELECT SUM(val) FROM retl._drainer_repl_mark WHERE channel_id = {CHANNEL}")
        return int(found[0][0] or 0)

    def now_ts(self) -> int:
        with contextlib.closing(self.tidb.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT @@tidb_current_ts")
            return int(cursor.fetchall()[0][0])

    def run(self, *statements: str) -> None:
        """One transaction."""
        with contextlib.closing(self.tidb.connect(autocommit=False)) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()


@dataclass
class Ours:
    """One of our drainers."""

    server: Server
    port: int

    @property
    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextlib.contextmanager
def site(directory: Path) -> Iterator[Site]:
    binaries = peer_bin()
    assert binaries is not None
    directory.mkdir()
    with running_peer(binaries, directory) as peer:
        peer.our_pump(peer.place("pump"))
        server = peer.start_tidb()
        yield Site(peer, MariaDB(server, peer.tidb_port, directory, user="root", password=""))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    directory = tmp_path_factory.mktemp("loopback")
    with site(directory / "east") as east, site(directory / "west") as west:
        yield east, west


def ours(source: Site, to: Site, syncer: str) -> Ours:
    port = free_port()
    drainer = source.peer.our_drainer(to.tidb, f"-status-addr=127.0.0.1:{port}", syncer=syncer)
    drainer.wait_for_output("drainer is running", deadline_s=300)
    return Ours(drainer, port)


def create_table(east: Site, west: Site) -> None:
    """Through the drainer that replicates DDL."""
    east.tidb.query("CREATE DATABASE IF NOT EXISTS app")
    columns = "id INT PRIMARY KEY, origin VARCHAR(10), v INT, filler VARCHAR(1000)"
    east.tidb.query(f"CREATE TABLE IF NOT EXISTS app.t ({columns})")

    def there() -> bool:
        return bool(
            west.tidb.query("SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA='app' AND TABLE_NAME='t'")
        )

    wait_until(there, deadline_s=120, what="the table is created in the other cluster")


def write(at: Site, origin: str, first: int) -> int:
    """Rows that only this side writes. Returns how many changes they are."""
    for n in range(20):
        at.run(f"INSERT INTO app.t VALUES ({first + n}, '{origin}', 0, NULL)")
    ids = range(first + 20, first + 60)
    at.run(*(f"INSERT INTO app.t VALUES ({n}, '{origin}', 0, NULL)" for n in ids))
    at.run(
        f"UPDATE app.t SET v = v + 1 WHERE id BETWEEN {first} AND {first + 39}", f"DELETE FROM app.t WHERE id={first}"
    )
    return 20 + 40 + 40 + 1


def write_large(at: Site, origin: str, first: int) -> int:
    rows = [f"({first + n}, '{origin}', {n}, REPEAT('x', 1000))" for n in range(BIG)]
    at.run(*("INSERT INTO app.t VALUES " + ",".join(rows[n : n + 500]) for n in range(0, BIG, 500)))
    return BIG


def wait_equal(east: Site, west: Site) -> None:
    wait_until(lambda: east.rows() == west.rows(), deadline_s=180, what="both clusters have the same rows")


def rounds(east: Site, west: Site, *numbers: int) -> None:
    """A row from each side for each number. When one has arrived, everything that was written before it has been
    read, also what a drainer wrote."""
    for n in numbers:
        east.run(f"INSERT INTO app.t VALUES ({-2 * n}, 'east', 0, NULL)")
        west.run(f"INSERT INTO app.t VALUES ({-2 * n - 1}, 'west', 0, NULL)")
        wait_equal(east, west)


def test_rows_written_in_two_clusters_arrive_once_in_the_other(sites: tuple[Site, Site], java: None) -> None:
    east, west = sites
    there = ours(east, west, LOOPBACK)
    create_table(east, west)
    back = ours(west, east, FOLLOWS)
    from_east, from_west = write(east, "east", 1000), write(west, "west", 2000)
    from_east += write_large(east, "east", 10_000)
    from_west += write_large(west, "west", 20_000)
    wait_equal(east, west)
    rounds(east, west, 1, 2, 3)
    assert len(east.rows()) == 2 * (59 + BIG + 3)
    assert (there.status["RowsApplied"], back.status["RowsApplied"]) == (from_east + 3, from_west + 3)
    assert there.status["LeftOut"] > 3 and back.status["LeftOut"] > 3
    large = [drainer.status["Batches"]["large"] for drainer in (there, back)]
    assert large == [2, 2]  # its own, and that of the other side, of which nothing is applied
    for drainer in (there, back):
        assert drainer.server.stop(deadline_s=240) == 0, drainer.server.tail()


def test_our_drainer_and_the_originals_leave_out_what_the_other_wrote(sites: tuple[Site, Site], java: None) -> None:
    """The original replicates our position tables unless it is told to ignore them. Large transactions: the test
    before."""
    east, west = sites
    there = ours(east, west, LOOPBACK)
    create_table(east, west)
    back = west.peer.go_drainer(east.tidb, syncer=FOLLOWS, ignored=["tidb_binlog"], initial_ts=west.now_ts())
    from_east = write(east, "east", 3000)
    write(west, "west", 4000)
    wait_equal(east, west)
    rounds(east, west, 4)
    before = east.marks()
    rounds_more = 2
    for n in range(rounds_more):
        west.run(f"INSERT INTO app.t VALUES ({-100 - n}, 'west', 0, NULL)")
        wait_equal(east, west)
    assert east.marks() == before + rounds_more
    assert there.status["RowsApplied"] == from_east + 1
    assert there.status["LeftOut"] > 3
    assert back.alive, back.tail()
    assert there.server.stop(deadline_s=240) == 0, there.server.tail()
