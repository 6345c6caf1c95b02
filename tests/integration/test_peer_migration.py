"""docs/migration.md, step by step, there and back, under load. A desk test: skipped without PEER_BIN, in CI too.

From the original's two pumps and drainer to ours, back to the original's, then to our drainer and one of our pumps
again: TiDB writes all the time, and the destination equals TiDB after each change. It takes some minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.test_peer import UTF8, begin, wait_equal
from tests.peer.cluster import GO_IGNORED, Peer, PumpPlace, peer_bin, running_peer
from tests.peer.load import CALM_DDLS, running_load
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB, Server, free_port, python_module, running_mariadb, wait_until

pytestmark = desk_test(1500)
NODE = "drainer-1"


@dataclass
class Site:
    """What an operator has: two pumps' places, one drainer.toml."""

    peer: Peer
    destination: MariaDB
    places: tuple[PumpPlace, PumpPlace]
    drainer_addr: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    lives: int = 0

    @property
    def drainer_toml(self) -> str:
        return (
            f'[syncer]\nignore-schemas = "{GO_IGNORED}"\ndb-type = "mysql"\nworker-count = 4\n'
            'sql-mode = "NO_ENGINE_SUBSTITUTION"\n[syncer.to]\n'
            f'host = "{self.destination.host}"\nport = {self.destination.port}\n'
            f'user = "{self.destination.user}"\npassword = "{self.destination.password}"\n'
        )

    def drainer(self, *, ours: bool) -> Server:
        """Same configuration, address and node id; ours with the line that the page adds."""
        self.lives += 1
        file = self.peer.directory / f"drainer-{self.lives}.toml"
        schema = f'[schema]\nhistory-url = "{self.peer.history_url}"\n' if ours else ""
        file.write_text(self.drainer_toml + schema)
        arguments = [
            *(f"-config={file}", f"-node-id={NODE}", f"-addr={self.drainer_addr}"),
            *(f"-pd-urls={self.peer.pd_url}", f"-data-dir={self.peer.directory}/drainer-{self.lives}"),
        ]
        output = self.peer.directory / f"drainer-{self.lives}.out"
        if ours:
            server = python_module("drainer", *arguments, output=output).start()
        else:
            # Our pumps answer it compressed, and in its next life not.
            first = ["-initial-commit-ts=0", "-compressor=gzip"] * (self.lives == 1)
            server = Server([str(self.peer.binaries / "drainer"), *arguments, *first], output, {"TZ": "UTC"}).start()
        self.peer.servers.append(server)
        return server

    def ended(self, what: str, node_id: str, server: Server, word: str = "pause", state: str = "paused") -> None:
        """By the original's binlogctl, at the address of gRPC, which it finds in the registry."""
        self.peer.binlogctl("-cmd", f"{word}-{what}", "-node-id", node_id)
        assert server.wait(deadline_s=240) == 0, server.tail()
        states = self.peer.binlogctl("-cmd", f"{what}s", "-show-offline-nodes")
        assert any(f"NodeID: {node_id}," in line and f"State: {state}" in line for line in states.splitlines()), states


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    binaries = peer_bin()
    assert binaries is not None
    with running_peer(binaries, tmp_path) as peer, running_mariadb(*UTF8) as destination:
        yield Site(peer, destination, (peer.place("pump-a"), peer.place("pump-b")))


def stored(place: PumpPlace) -> int:
    """Bytes in its value log."""
    return sum(file.stat().st_size for file in (place.data / "value").glob("*.vlog"))


def pumps_changed(site: Site, pumps: list[Server], *, ours: bool) -> list[Server]:
    """One after the other; the next one when TiDB writes to the one before."""
    changed = []
    for place, pump in zip(site.places, pumps, strict=True):
        site.ended("pump", place.node_id, pump)
        changed.append(site.peer.our_pump(place) if ours else site.peer.go_pump(place))
        before = stored(place)
        wait_until(lambda: stored(place) > before + 2000, deadline_s=180, what=f"TiDB writes to {place.node_id}")  # noqa: B023
    return changed


def test_migration_from_go_to_ours_and_back_keeps_copy_equal(site: Site, java: None) -> None:
    peer, destination = site.peer, site.destination
    pumps = [peer.go_pump(place) for place in site.places]
    begin(peer)
    drainer = site.drainer(ours=False)
    with running_load(peer.connect, pause_s=0.3) as load:
        load.define(CALM_DDLS[:6])
        pumps = pumps_changed(site, pumps, ours=True)
        load.define(CALM_DDLS[6:12])
    assert load.failed_ddls == []
    wait_equal(peer, destination)
    with running_load(peer.connect, pause_s=0.3, seed=2) as load:
        site.ended("drainer", NODE, drainer)
        drainer = site.drainer(ours=True)
        drainer.wait_for_output("continuing from the checkpoint of the original drainer", deadline_s=120)
        drainer.wait_for_output("drainer is running", deadline_s=300)
        load.define(CALM_DDLS[12:])
    assert load.failed_ddls == []
    wait_equal(peer, destination)
    with running_load(peer.connect, pause_s=0.3, seed=3) as load:
        site.ended("drainer", NODE, drainer)
        drainer = site.drainer(ours=False)
        load.define(CALM_DDLS[:12])
        pumps = pumps_changed(site, pumps, ours=False)
    assert load.failed_ddls == []
    wait_equal(peer, destination)
    assert drainer.alive, drainer.tail()
    with running_load(peer.connect, pause_s=0.3, seed=4) as load:
        site.ended("drainer", NODE, drainer)
        destination.query("DELETE FROM tidb_binlog.drainer_position")
        drainer = site.drainer(ours=True)
        drainer.wait_for_output("continuing from the checkpoint of the original drainer", deadline_s=120)
        site.ended("pump", site.places[1].node_id, pumps[1])
        peer.our_pump(site.places[1])  # which the original's had taken over from ours
        load.define(CALM_DDLS[12:])
    assert load.failed_ddls == []
    # Ours reads the original's pump, too, which starts again while it is registered: it must answer (Notify).
    assert pumps[0].stop(deadline_s=240) == 0
    peer.go_pump(site.places[0])
    wait_equal(peer, destination)
    with contextlib.closing(peer.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM app.ledger")
        assert cursor.fetchone()[0] > 0
    site.ended("drainer", NODE, drainer, "offline", "offline")
