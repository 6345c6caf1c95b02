"""A recording of a real TiDB, served by stub pumps, through the drainer into a real MariaDB."""

from __future__ import annotations

import json

import pytest

from tests.golden.compare import differences
from tests.integration.drainer.stubs import Stubs
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.servers import MariaDB, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

DISTRIBUTED = "distributed-bytes-min = 1\nbatch-bytes-max = 4096\ndriver-bytes-max = 512"


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


def serve(stubs: Stubs, capture: CaptureSet) -> None:
    """The recording in two pumps."""
    for pump in ("a", "b"):
        stubs.add(pump)
    stubs.share(capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])


def test_recording_through_stub_pumps_gives_upstreams_tables(stubs: Stubs, mariadb: MariaDB) -> None:
    """--until-now reads everything the pumps have resolved and exits 0."""
    capture = CaptureSet(GOLDEN / "types")
    serve(stubs, capture)
    drainer = stubs.drainer(configuration(stubs, capture, mariadb), "--until-now").start()
    assert drainer.wait(deadline_s=300) == 0, drainer.tail()
    assert differences(mariadb, capture) == []


@pytest.mark.slow
def test_drainer_killed_around_distributed_batch_applies_rows_once(stubs: Stubs, mariadb: MariaDB) -> None:
    """Every batch without a DDL is distributed; the drainer dies behind a DDL, and when every slot of a batch is
    written, then ends its work. An executor that dies: test_kills.py; every other place: tests/integration/sink.

    Tables without keys show at once what was written twice.
    """
    capture = CaptureSet(GOLDEN / "keys")
    serve(stubs, capture)
    config = configuration(stubs, capture, mariadb, more=DISTRIBUTED)
    for point in ("drainer.after_ddl", "drainer.before_commit"):
        drainer = stubs.drainer(config, "--until-now", BINLOG_CRASH_POINT=point).start()
        assert drainer.wait(deadline_s=300) == -9, f"{point} was not reached\n{drainer.tail()}"
    drainer = stubs.drainer(config, "--until-now").start()
    assert drainer.wait(deadline_s=300) == 0, drainer.tail()
    assert differences(mariadb, capture) == []


def test_drainer_started_without_binlogs_applies_later_ones(stubs: Stubs, mariadb: MariaDB) -> None:
    """Spark's first batch is empty then. What comes later arrives, in one pump."""
    capture = CaptureSet(GOLDEN / "keys")
    stubs.add("a")
    drainer = stubs.drainer(configuration(stubs, capture, mariadb, more='log-level = "debug"')).start()
    drainer.wait_for_output("drainer is running", deadline_s=300)
    drainer.wait_for_output("Spark's first batch is empty", deadline_s=180)
    stubs.share(capture.binlogs)
    stubs.resolve(capture.meta["scenario_end_ts"])
    wait_until(lambda: differences(mariadb, capture) == [], deadline_s=240, what="every table arrived")
    assert drainer.stop(deadline_s=240) == 0, drainer.tail()


@pytest.mark.slow
def test_destination_with_relay_log_dir_is_whole_when_upstream_is_lost(stubs: Stubs, mariadb: MariaDB) -> None:
    """The disaster: the drainer is killed within a batch, and the pumps are gone. Without the setting that leaves a
    part of a batch; with it, upstream as it was at the position, as a drainer that stops there shows."""
    capture = CaptureSet(GOLDEN / "keys")

    def tables() -> dict[str, list[str]]:
        found = mariadb.query(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND "
            "TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema', 'tidb_binlog')"
        )
        return {f"{s}.{t}": sorted(map(repr, mariadb.query(f"SELECT * FROM `{s}`.`{t}`"))) for s, t in found}

    config = configuration(stubs, capture, mariadb, more=DISTRIBUTED)
    serve(stubs, capture)
    relay = f'{config}[syncer.relay]\nlog-dir = "relay"\n'
    # The recording begins with 33 DDLs.
    killed = stubs.drainer(relay, "--until-now", BINLOG_CRASH_POINT="sink.before_commit:37").start()
    assert killed.wait(deadline_s=300) == -9, killed.tail()
    for pump in stubs.pumps.values():
        pump.stop()
    ((position_ts, intent),) = mariadb.query("SELECT commit_ts, intent FROM tidb_binlog.drainer_position")
    left = tables()
    assert intent is None and position_ts > capture.meta["scenario_start_ts"] and any(left.values())

    mariadb.reset()
    serve(stubs, capture)
    again = stubs.drainer(f"stop-at = {position_ts}\n{config}").start()
    assert again.wait(deadline_s=300) == 0, again.tail()
    assert mariadb.query("SELECT commit_ts FROM tidb_binlog.drainer_position") == [(position_ts,)]
    assert tables() == left
