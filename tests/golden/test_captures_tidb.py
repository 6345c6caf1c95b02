"""The recordings into a TiDB. A desk test: it runs where PEER_BIN names a folder with `tidb-server`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.compare import differences
from tests.golden.test_captures import THROUGH_KILLS, chain_of, config_of, through_kills
from tests.peer.cluster import peer_bin
from tests.peer.destination import running_tidb
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.replay import Sender, last_ts, schedule
from tests.support.servers import Etcd, MariaDB

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(peer_bin() is None, reason="PEER_BIN does not name a folder with tidb-server"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The committed sets, or those of `--captures DIR`, which run both ways."""
    if "capture" in metafunc.fixturenames:
        paths: list[Path] = metafunc.config.getoption("--captures") or [GOLDEN]
        sets = [found for path in paths for found in find_sets(path)]
        if paths == [GOLDEN]:
            through_kills = "killed" in metafunc.function.__name__
            sets = [s for s in sets if (s.name in THROUGH_KILLS) is not through_kills]
        metafunc.parametrize("capture", sets, ids=[s.name for s in sets])


@pytest.fixture
def tidb() -> Iterator[MariaDB]:
    """A fresh TiDB with nothing in it."""
    binaries = peer_bin()
    assert binaries is not None
    with running_tidb(binaries) as server:
        yield server


# TiDB reads the JSON text -0 as an integer, which has no such value; see docs/compatibility.md.
KNOWN = {
    "types": [
        'types.t_json: 22 rows, expected has 22; missing [\'["8", "-0", "1e+21", "dbl"]\']; '
        'extra [\'["8", "0", "1e+21", "dbl"]\']'
    ]
}


def check(tidb: MariaDB, capture: CaptureSet) -> None:
    assert differences(tidb, capture, prints_as_tidb=True) == KNOWN.get(capture.name, [])


def test_recording_into_tidb_gives_upstreams_tables(capture: CaptureSet, etcd: Etcd, tidb: MariaDB, java: None) -> None:
    """Written first, drained afterwards with --until-now; no statement of the recording is replaced."""
    with chain_of(capture, etcd) as (chain, pd):
        sender = Sender(chain, pd.hold)
        for write in schedule(capture.writes):
            sender.send(write)
        pd.hold(last_ts(capture.writes) + 1)
        drainer = chain.drainer(config_of(capture, chain, tidb, db_type="tidb"), "--until-now").start()
        code = drainer.wait(deadline_s=900)
        assert code == 0, drainer.tail()
        check(tidb, capture)


def test_recording_into_tidb_through_killed_drainers_gives_upstreams_tables(
    capture: CaptureSet, etcd: Etcd, tidb: MariaDB, java: None
) -> None:
    """Tables without a key would show a row that is lost or there twice."""
    with chain_of(capture, etcd) as (chain, pd):
        through_kills(capture, chain, pd, tidb, config_of(capture, chain, tidb, db_type="tidb"))
        check(tidb, capture)
