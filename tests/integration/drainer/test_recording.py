"""A recording of a real TiDB, served by stub pumps, through the drainer into a real MariaDB."""

from __future__ import annotations

import json
import re

import pytest
from binlog.envelope import scan

from tests.golden.compare import differences
from tests.integration.drainer.stubs import Stubs
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.servers import MariaDB, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def configuration(stubs: Stubs, capture: CaptureSet, mariadb: MariaDB, *, more: str = "") -> str:
    history = stubs.directory / "history.json"
    history.write_bytes(capture.jobs_text)
    rewrites = "\n".join(
        f"[[syncer.ddl-rewrite]]\njob-id = {entry['job_id']}\nsql = {json.dumps(entry['replacement'])}\n"
        for entry in capture.meta.get("drainer_skipped_commit_ts", [])
    )
    return (
        f'initial-commit-ts = {capture.meta["scenario_start_ts"]}\nstatus-addr = ""\n{more}\n'
        f'[schema]\nhistory-file = "{history}"\n[syncer]\ndb-type = "mariadb"\n{rewrites}\n'
        f'[syncer.to]\nhost = "{mariadb.host}"\nport = {mariadb.port}\nuser = "{mariadb.user}"\n'
        f'password = "{mariadb.password}"\n'
    )


@pytest.mark.parametrize("name", ["types", "keys"])
def test_recording_through_stub_pumps_gives_upstreams_tables(name: str, stubs: Stubs, mariadb: MariaDB) -> None:
    """--until-now reads everything the pumps have resolved and exits 0."""
    capture = CaptureSet(GOLDEN / name)
    for pump in ("a", "b"):
        stubs.add(pump)
    stubs.share(capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])
    drainer = stubs.drainer(configuration(stubs, capture, mariadb), "--until-now").start()
    assert drainer.wait(deadline_s=300) == 0, drainer.tail()
    assert differences(mariadb, capture) == []


# In this order the first distributed batch is open over three lives.
CRASHES = [
    "drainer.after_ddl",
    "drainer.after_intent",
    "drainer.before_commit",
    "drainer.mid_distributed",
    "drainer.after_apply",
]


@pytest.mark.slow
def test_drainer_killed_at_every_crash_point_applies_rows_once(stubs: Stubs, mariadb: MariaDB) -> None:
    """Every batch without a DDL is distributed; the drainer dies at each crash point in turn, then ends its work.

    Tables without keys show at once what was written twice.
    """
    capture = CaptureSet(GOLDEN / "keys")
    for pump in ("a", "b"):
        stubs.add(pump)
    stubs.share(capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])
    small = "distributed-bytes-min = 1\nbatch-bytes-max = 4096\ndriver-bytes-max = 512"
    config = configuration(stubs, capture, mariadb, more=small)
    for point in CRASHES:
        drainer = stubs.drainer(config, "--until-now", BINLOG_CRASH_POINT=point).start()
        assert drainer.wait(deadline_s=300) in (-9, 2), f"{point} was not reached\n{drainer.tail()}"
    drainer = stubs.drainer(config, "--until-now").start()
    assert drainer.wait(deadline_s=300) == 0, drainer.tail()
    assert differences(mariadb, capture) == []


@pytest.mark.slow
def test_planned_binlog_that_pump_does_not_serve_stops_drainer(stubs: Stubs, mariadb: MariaDB) -> None:
    """Rule 22: in the driver and distributed, it ends after a few tries with the pump, the range and both numbers, its
    position before that range; once the pump serves everything, all arrives."""
    capture = CaptureSet(GOLDEN / "keys")
    for pump in ("a", "b"):
        stubs.add(pump)
    stubs.share(capture.binlogs)
    begin_ts, end_ts = capture.meta["scenario_start_ts"], capture.meta["scenario_end_ts"]
    stubs.resolve(end_ts)
    rows = [e for e in map(scan, capture.binlogs) if begin_ts < e.commit_ts <= end_ts and not e.ddl_job_id]
    lost_ts = rows[len(rows) // 2].commit_ts
    for stub in stubs.pumps.values():
        stub.unserved = {lost_ts}
    distributed = "distributed-bytes-min = 1\nbatch-bytes-max = 4096\ndriver-bytes-max = 512"
    for more in ("", distributed):
        config = configuration(stubs, capture, mariadb, more=more)
        drainer = stubs.drainer(config, "--until-now").start()
        assert drainer.wait(deadline_s=300) == 2, drainer.tail()
        said = re.search(
            r"(?s)pump [ab] \(127\.0\.0\.1:\d+\): the range \((\d+), (\d+)\] was planned with (\d+) binlogs? .*? but "
            r"(\d+) binlogs? ",
            drainer.text(),
        )
        assert said is not None, drainer.tail()
        after_ts, until_ts, planned, came = map(int, said.groups())
        assert after_ts < lost_ts <= until_ts and planned == came + 1
        position = mariadb.query("SELECT commit_ts FROM tidb_binlog.drainer_position")
        assert position[0][0] < lost_ts
    for stub in stubs.pumps.values():
        stub.unserved = set()
    drainer = stubs.drainer(config, "--until-now").start()
    assert drainer.wait(deadline_s=300) == 0, drainer.tail()
    assert differences(mariadb, capture) == []


@pytest.mark.slow
def test_drainer_started_without_binlogs_applies_later_ones(stubs: Stubs, mariadb: MariaDB) -> None:
    """Spark's first batch is empty then. What comes later arrives."""
    capture = CaptureSet(GOLDEN / "keys")
    stubs.add("a")
    drainer = stubs.drainer(configuration(stubs, capture, mariadb, more='log-level = "debug"')).start()
    drainer.wait_for_output("drainer is running", deadline_s=300)
    drainer.wait_for_output("Spark's first batch is empty", deadline_s=180)
    stubs.share(capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])
    wait_until(lambda: differences(mariadb, capture) == [], deadline_s=240, what="every table arrived")
    assert drainer.stop(deadline_s=240) == 0, drainer.tail()
