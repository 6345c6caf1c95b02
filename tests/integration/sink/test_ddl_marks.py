"""The marks of DDL jobs: each is looked for, finished and thrown away by its changefeed, its job and its state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.cluster import tso
from binlog.tidb.job import ActionType

from drainer.schema.steps import Ddl
from drainer.sink.errors import DdlFailed, Fenced, PositionMoved
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.position import KEPT_JOBS_MS
from tests.integration.sink.case import IDENTITY, opened, server_config
from tests.integration.sink.ddl_case import CREATE, T, position, step
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

MARKS = "SELECT cluster_id, changefeed, job_id, state FROM tidb_binlog.drainer_ddl ORDER BY 1, 2, 3"
OTHERS = ((7, "other"), (8, "main"))


def copy(db: MariaDB, cluster_id: int, changefeed: str, job_id: int, state: str) -> None:
    """A mark as a changefeed leaves it, made from our own of job 1."""
    db.query(
        "INSERT INTO tidb_binlog.drainer_ddl SELECT %s,%s,%s,%s,commit_ts,schema_version,statement,plan "
        "FROM tidb_binlog.drainer_ddl WHERE cluster_id=7 AND changefeed='main' AND job_id=1",
        cluster_id, changefeed, job_id, state,
    )  # fmt: skip


def add_column(job_id: int, commit_ts: int, *sql: str) -> Ddl:
    """With an operator's own text."""
    return replace(step(job_id, ActionType.ADD_COLUMN, commit_ts, *sql, before=T, after=T), rewritten=True)


def test_ddl_mark_of_another_changefeed_does_not_count(db: MariaDB) -> None:
    """Nor is another job, nor one that has only begun."""
    destination = opened(db)
    destination.ddl(CREATE)
    for cluster_id, changefeed in OTHERS:
        copy(db, cluster_id, changefeed, 2, "done")
    copy(db, 7, "main", 3, "running")
    assert [destination.job_done(job_id) for job_id in (1, 2, 3)] == [True, False, False]


def test_running_ddl_marks_of_other_changefeeds_are_left_at_start(
    db: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    """A start looks at its own unfinished jobs, and at none that is done."""
    destination = opened(db)
    destination.ddl(CREATE)
    destination.close(clean=True)
    for cluster_id, changefeed in OTHERS:
        copy(db, cluster_id, changefeed, 1, "running")
    db.query("UPDATE tidb_binlog.drainer_ddl SET plan=JSON_SET(plan, '$.statement', 1)")  # it has begun to take effect
    before = db.query(MARKS)
    MySQLSink(server_config(db)).open(IDENTITY, 100)
    assert db.query(MARKS) == before and "a crash interrupted" not in caplog.text
    assert before == [(7, "main", 1, "done"), (7, "other", 1, "running"), (8, "main", 1, "running")]


def test_refused_ddl_removes_only_its_own_mark(db: MariaDB) -> None:
    destination = opened(db)
    destination.ddl(CREATE)
    for cluster_id, changefeed in OTHERS:
        copy(db, cluster_id, changefeed, 77, "running")
    copy(db, 7, "main", 76, "running")
    before = db.query(MARKS)
    with pytest.raises(DdlFailed, match="1146"):
        destination.ddl(add_column(77, 300, "ALTER TABLE `nothere` ADD COLUMN `a` INT"))
    assert db.query(MARKS) == before


def test_ddl_marks_are_purged_after_a_day_and_a_thousand_jobs(db: MariaDB) -> None:
    """Our own, of jobs that are done; the newest thousand stay, and those of the last day of the stream."""
    destination = opened(db)
    destination.ddl(CREATE)
    copy(db, 7, "main", 2, "running")
    copy(db, 7, "main", 999, "done")
    copy(db, 7, "main", 1000, "done")
    for cluster_id, changefeed in OTHERS:
        copy(db, cluster_id, changefeed, 1, "done")
    before = db.query(MARKS)
    destination.ddl(add_column(1999, 300, "ALTER TABLE `t` ADD COLUMN `a` INT"))
    assert db.query(MARKS) == sorted([*before, (7, "main", 1999, "done")])
    destination.ddl(add_column(2000, 301 + tso.compose(KEPT_JOBS_MS, 0), "ALTER TABLE `t` ADD COLUMN `b` INT"))
    assert db.query(MARKS) == [
        (7, "main", 2, "running"),
        (7, "main", 1000, "done"),
        (7, "main", 1999, "done"),
        (7, "main", 2000, "done"),
        (7, "other", 1, "done"),
        (8, "main", 1, "done"),
    ]


def test_ddl_below_position_is_refused(db: MariaDB) -> None:
    """Rows above it are applied already; it comes too late, and says so."""
    destination = opened(db, at=300)
    with pytest.raises(PositionMoved, match="its position is 300"):
        destination.ddl(CREATE)
    assert position(db) == 300


def test_row_statement_of_ddl_rewrite_is_fenced(db: MariaDB) -> None:
    """One that an operator put into ddl-rewrite: it runs in a transaction of its own, and not under the lock alone."""
    destination = opened(db)
    destination.ddl(CREATE)
    db.query("UPDATE tidb_binlog.drainer_position SET epoch=epoch+1, node_id='drainer-2'")
    with pytest.raises(Fenced, match="'drainer-2' has taken over"):
        destination.ddl(add_column(2, 300, "INSERT INTO `t` VALUES (1)"))
    assert db.query("SELECT * FROM d.t") == []
