"""Servers that both the Go drainer and this drainer can read: a PD, a TiDB that creates the table, two pumps of this
project.

Both drainers know the table as they would in production. Used by bench.drainer where PEER_BIN names the binaries.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peer.cluster import Peer, running_peer
from tests.support.servers import MariaDB, Server, running_mariadb

WORKERS = 16  # workers of the Go drainer, which writes with one connection each; its default


@dataclass
class PeerBacklog:
    """See bench.drainer.Backlog."""

    peer: Peer
    table_id: int
    pumps: Sequence[Server]
    pump_ports: Sequence[int]

    @property
    def endpoint(self) -> str:
        return self.peer.pd_url

    def pump_pids(self) -> list[int]:
        return [pump.process.pid for pump in self.pumps if pump.process is not None]

    def ours(self, mariadb: MariaDB, syncer: str, top: str) -> Server:
        return self.peer.our_drainer(mariadb, more=top, syncer=syncer)

    def original(self, mariadb: MariaDB) -> Server | None:
        return self.peer.go_drainer(mariadb, worker_count=WORKERS)


def create_table(peer: Peer, statement: str) -> int:
    """Create bench.sbtest upstream; return its id."""
    with peer.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute(statement)
        cursor.execute(
            "SELECT tidb_table_id FROM information_schema.tables WHERE table_schema='bench' AND table_name='sbtest'"
        )
        found = cursor.fetchone()
        assert found is not None
        return int(found[0])


@contextlib.contextmanager
def peer_with_table(binaries: Path, statement: str) -> Iterator[tuple[Peer, int, list[Server], list[int]]]:
    """Run a TiDB with two pumps of this project and bench.sbtest. Yields the TiDB, the table's id, the pumps, and their
    ports. `statement`: CREATE TABLE bench.sbtest, run by TiDB."""
    directory = Path(tempfile.mkdtemp(prefix="bench-peer-"))
    try:
        with running_peer(binaries, directory) as peer:
            places = [peer.place(f"bench-{number}") for number in range(2)]
            pumps = [peer.our_pump(place) for place in places]
            peer.start_tidb()
            yield peer, create_table(peer, statement), pumps, [place.port for place in places]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def original_backlog(
    binaries: Path, statement: str, mariadb_options: Sequence[str]
) -> Iterator[tuple[PeerBacklog, MariaDB]]:
    """`statement`: see peer_with_table."""
    with running_mariadb(*mariadb_options) as mariadb, peer_with_table(binaries, statement) as found:
        peer, table_id, pumps, ports = found
        yield PeerBacklog(peer, table_id, pumps, ports), mariadb
