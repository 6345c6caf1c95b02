"""What a real TiDB sent, through two pumps and the drainer on Spark, into MariaDB: every table, row for row."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.golden.compare import differences
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.replay import (
    Chain,
    Sender,
    drainer_config,
    first_ts,
    last_ts,
    schedule,
    temporary_directory,
)
from tests.support.servers import Etcd, MariaDB, wait_until
from tests.support.stub_pd import StubPD

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


# Of the committed sets. Without kills: tests/golden/test_ddl.py, and through whole programs
# tests/integration/drainer/test_recording.py, where drainers die among the rows of `keys`, too.
INTO_MARIADB = "ddl_hard"


def chosen_sets(config: pytest.Config, committed: Callable[[str], bool]) -> list[CaptureSet]:
    """All sets of `--captures DIR`, or the committed ones whose names are `committed` to a test."""
    paths: list[Path] = config.getoption("--captures")
    sets = [found for path in paths or [GOLDEN] for found in find_sets(path)]
    if not sets:
        raise pytest.UsageError(f"--captures: no set (a folder with writes.bin) in {paths}")
    return sets if paths else [found for found in sets if committed(found.name)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capture" in metafunc.fixturenames:
        sets = chosen_sets(metafunc.config, lambda name: name == INTO_MARIADB)
        metafunc.parametrize("capture", sets, ids=[s.name for s in sets])


class HeldPD:
    """A StubPD on a thread of its own, so that tests stay synchronous. Its clock stands where `hold` puts it."""

    def __init__(self, cluster_id: int, ts: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._pd = self._run(StubPD.start(cluster_id=cluster_id))
        self.addr: str = self._pd.addr
        self.hold(ts)

    def _run(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def hold(self, ts: int) -> None:
        async def move() -> None:
            self._pd.set(ts, hold=True)

        self._run(move())

    def close(self) -> None:
        self._run(self._pd.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)


@contextlib.contextmanager
def chain_of(capture: CaptureSet, etcd: Etcd) -> Iterator[tuple[Chain, HeldPD]]:
    directory = temporary_directory()
    cluster_id = capture.meta["cluster_id"]
    pd = HeldPD(cluster_id, first_ts(capture.writes))
    chain = Chain(etcd, pd.addr, cluster_id, directory)
    try:
        for name in ("pump-a", "pump-b"):
            chain.add_pump(name).start()
        for pump in chain.pumps:
            pump.wait_ready()
        yield chain, pd
    finally:
        chain.close()
        pd.close()
        shutil.rmtree(directory, ignore_errors=True)


def config_of(capture: CaptureSet, chain: Chain, destination: MariaDB) -> Path:
    jobs = chain.directory / "ddl_history.json"
    jobs.write_bytes(capture.jobs_text)
    from_ts = first_ts(capture.writes) - 1
    return chain.write_config(drainer_config(chain, capture, destination, jobs=jobs, from_ts=from_ts))


AUDIT = """
CREATE TRIGGER tidb_binlog.audit_position AFTER UPDATE ON tidb_binlog.drainer_position FOR EACH ROW
  INSERT INTO audit.moves(before_ts, after_ts) VALUES (OLD.commit_ts, NEW.commit_ts)
"""


def through_kills(capture: CaptureSet, chain: Chain, pd: HeldPD, destination: MariaDB) -> None:
    """Write the recording and drain it while pumps and drainer die by SIGKILL: pumps and the first drainer at random
    writes, the second drainer in its start, and the third one when it has applied a part of what is left."""
    rng = random.Random(20261121)
    writes = schedule(capture.writes)
    sender = Sender(chain, pd.hold)
    config = config_of(capture, chain, destination)
    drainer = chain.drainer(config).start()
    kill_pump_at = set(rng.sample(range(10, len(writes)), 4))
    kill_drainer_at = set(rng.sample(range(10, len(writes)), 2))
    for index, write in enumerate(writes):
        if index in kill_pump_at:
            pump = rng.choice(chain.pumps)
            pump.server.kill()
            pump.start()
        if index in kill_drainer_at:
            if index == min(kill_drainer_at):
                drainer.wait_for_output("drainer is running", deadline_s=240)
                wait_until(lambda: position(destination), deadline_s=180, what=drainer.tail)
                destination.query(AUDIT)
            drainer.kill()
            drainer = chain.drainer(config).start()
        sender.send(write)
    for pump in chain.pumps:
        pump.wait_ready()
    before = position(destination)
    pd.hold(last_ts(capture.writes) + 1)
    wait_until(lambda: position(destination) > before, deadline_s=240, what=drainer.tail)
    drainer.kill()
    last = chain.drainer(config, "--until-now").start()
    assert last.wait(deadline_s=600) == 0, last.tail()


def test_recording_through_killed_drainers_gives_upstreams_tables(
    capture: CaptureSet, etcd: Etcd, mariadb: MariaDB, java: None
) -> None:
    """Nothing is lost, nothing is there twice, and every range was applied once."""
    mariadb.query("CREATE DATABASE audit")
    mariadb.query("CREATE TABLE audit.moves(n BIGINT AUTO_INCREMENT PRIMARY KEY, before_ts BIGINT, after_ts BIGINT)")
    with chain_of(capture, etcd) as (chain, pd):
        through_kills(capture, chain, pd, mariadb)
        assert differences(mariadb, capture) == []
        moves = mariadb.query("SELECT before_ts, after_ts FROM audit.moves WHERE before_ts <> after_ts ORDER BY n")
        assert moves, "the audit saw no move at all"
        for (_, earlier), (later, _) in itertools.pairwise(moves):
            assert earlier == later, f"a range was applied twice or left out around {earlier} and {later}"


def position(mariadb: MariaDB) -> int:
    rows = mariadb.query("SELECT commit_ts FROM tidb_binlog.drainer_position")
    return int(rows[0][0]) if rows else 0
