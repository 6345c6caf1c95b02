"""Our pumps and drainer behind a real TiDB. A desk test: skipped without PEER_BIN, in CI too.

PEER_BIN names a folder with `pd-server`, `unitikv`, `tidb-server`, and the original's `pump`, `drainer`, `binlogctl`;
the original's pump and drainer beside ours: test_peer_migration.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tests.peer.cluster import Peer
from tests.peer.compare import AS_TEXT, differences
from tests.peer.load import DDLS, Load, prepare, running_load
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB, Server, wait_until

pytestmark = desk_test(900)
# For the original's drainer, which leaves the character set of CREATE to the destination's defaults.
UTF8 = ("--character-set-server=utf8mb4", "--collation-server=utf8mb4_bin")


def wait_equal(peer: Peer, destination: MariaDB) -> None:
    def left() -> Iterator[str]:
        upstream, downstream = peer.connect(**AS_TEXT), destination.connect(**AS_TEXT)
        with contextlib.closing(upstream), contextlib.closing(downstream):
            yield from differences(upstream, downstream)

    def unequal() -> str:
        return "\n".join(["the destination equals TiDB", *(line[:500] for line in left())])

    # The first difference ends a comparison: most of them are made while the destination is far behind.
    wait_until(lambda: next(left(), None) is None, deadline_s=300, what=unequal)


def begin(peer: Peer) -> Server:
    """A TiDB with the load's tables."""
    tidb = peer.start_tidb()
    with contextlib.closing(peer.connect()) as connection:
        prepare(connection)
    return tidb


def written(load: Load, count: int) -> bool:
    return load.committed.total() >= count


def test_copy_of_tidb_is_equal_after_pump_drainer_and_tidb_are_killed(peer: Peer, mariadb: MariaDB, java: None) -> None:
    """Two of our pumps, our drainer. TiDB looks at a pump that came back every 30 s, so only one pump is killed. TiDB
    is killed under load, so that prewrites without an end are there, and nobody runs `binlogctl settle`."""
    first, second = peer.place("pump-a"), peer.place("pump-b")
    pump = peer.our_pump(first)
    peer.our_pump(second)
    tidb = begin(peer)
    drainer = peer.our_drainer(mariadb)
    drainer.wait_for_output("drainer is running", deadline_s=300)
    with running_load(peer.connect, pause_s=0.15) as load:
        load.define(DDLS[:12])
        pump.kill()
        peer.our_pump(first)
        load.define(DDLS[12:25])
        drainer.kill()
        drainer = peer.our_drainer(mariadb)
        load.define(DDLS[25:])
    assert load.failed_ddls == []

    def settled() -> bool:
        return any("outcome of a pending prewrite read from TiKV" in server.text() for server in peer.servers)

    for seed in range(2, 7):  # no prewrite may be pending when TiDB is killed
        with running_load(peer.connect, seed=seed) as load:
            for _ in range(2):
                enough = load.committed.total() + 100
                wait_until(partial(written, load, enough), what="transactions are written")
                tidb.kill()
                tidb = peer.start_tidb()
        wait_equal(peer, mariadb)
        if settled():
            break
    assert settled()
    assert drainer.stop(deadline_s=240) == 0, drainer.tail()
