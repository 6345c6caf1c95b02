"""DDL between its marks, on a real server: run once, judged after SIGKILL at every place, stopped with its name."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import PartitionDefinition, PartitionInfo, PartitionType

from drainer.batch.work import Folded
from drainer.schema.merged import SourceRows
from drainer.schema.steps import Ddl, TableChange
from drainer.sink.errors import DdlFailed, DdlUndecided, Fenced, LockHeld
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import IDENTITY, opened, put, server_config, shape, work
from tests.integration.sink.child import ChildFailed, run_until_done, start
from tests.integration.sink.ddl_case import CREATE, TEXT, column, located, position, step, table
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

POINTS = (
    "sink.ddl_before_mark",
    "sink.ddl_mark_commit",
    "sink.ddl_marked",
    "sink.ddl_after_exec",
    "sink.before_commit",
    "sink.after_commit",
    "sink.after_mark",
)


def test_ddl_runs_once_and_moves_position(db: MariaDB) -> None:
    """Done means done: asked again it changes nothing but the position."""
    destination = opened(db)
    assert not destination.job_done(1)
    destination.ddl(CREATE)
    assert destination.job_done(1)
    assert position(db) == 200
    destination.ddl(CREATE)
    assert db.query("SHOW TABLES IN d") == [("t",)]


def test_a_refused_ddl_names_everything_an_operator_needs(db: MariaDB) -> None:
    """Job, commit_ts, text, the server's words and the configuration; the position stays and nothing is marked."""
    before, after = table(50, "nothere"), table(50, "nothere", column(1, "id"), column(2, "a"))
    broken = step(77, ActionType.ADD_COLUMN, 200, "…", before=before, after=after)
    destination = opened(db)
    with pytest.raises(DdlFailed) as caught:
        destination.ddl(broken)
    text = str(caught.value)
    for part in ("job 77", "commit_ts 200", "ALTER TABLE `d`.`nothere`", "1146", "ddl-rewrite", "job-id = 77"):
        assert part in text
    assert position(db) == 100
    assert db.query("SELECT * FROM tidb_binlog.drainer_ddl") == []


def test_ddl_error_of_existing_object_is_ignored_only_with_may_exist(db: MariaDB) -> None:
    """D-LD-14, not blindly: an existing table stops, unless the job began before the initial position."""
    db.query("CREATE TABLE d.t (other INT)")
    destination = opened(db)
    with pytest.raises(DdlFailed, match="1050"):
        destination.ddl(CREATE)
    destination.ddl(CREATE, may_exist=True)
    assert position(db) == 200


def test_drop_of_missing_object_counts_as_done(db: MariaDB) -> None:
    """The destination is as the job leaves it."""
    destination = opened(db)
    destination.ddl(step(1, ActionType.DROP_TABLE, 200, "DROP TABLE `gone`", before=table(9, "gone")))
    destination.ddl(step(2, ActionType.DROP_SCHEMA, 300, "DROP DATABASE `gone`", schema="gone", use=""))
    assert position(db) == 300


def setup_tables(db: MariaDB) -> None:
    db.query("CREATE TABLE d.a (id INT PRIMARY KEY)")
    db.query("CREATE TABLE d.b (id INT PRIMARY KEY)")
    db.query("CREATE TABLE d.m (id INT, a INT NOT NULL, src VARCHAR(20), PRIMARY KEY (id, src))")
    db.query("INSERT INTO d.m VALUES (1,1,'d.x'),(2,2,'d.x'),(1,1,'d.y')")
    db.query("INSERT INTO d.a VALUES (1)")
    db.query("INSERT INTO d.b VALUES (2)")
    db.query("CREATE TABLE d.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))")
    db.query("INSERT INTO d.p VALUES (50)")
    db.query(
        "CREATE TABLE d.w (id INT PRIMARY KEY) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (1000))"
    )
    db.query("CREATE TABLE d.far (id INT PRIMARY KEY)")
    db.query("INSERT INTO d.w VALUES (50)")
    db.query("INSERT INTO d.far VALUES (500)")
    db.query("CREATE TABLE d.h (id INT) PARTITION BY HASH (id) PARTITIONS 3")
    db.query("INSERT INTO d.h VALUES (NULL),(1),(3)")


A, B, P = table(51, "a"), table(52, "b"), table(53, "p")
RING = step(
    5, ActionType.RENAME_TABLES, 300, "RENAME TABLE `a` TO `tmp`, `b` TO `a`, `tmp` TO `b`",
    changes=[(A, table(51, "tmp")), (B, table(52, "a")), (table(51, "tmp"), table(51, "b"))],
)  # fmt: skip
EXCHANGE = step(
    5, ActionType.EXCHANGE_TABLE_PARTITION, 300, "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `a`",
    changes=[(P, P), (A, A)],
)  # fmt: skip
TRUNCATE = step(5, ActionType.TRUNCATE_TABLE, 300, "TRUNCATE TABLE `a`", before=A, after=table(61, "a"))
ADD = step(
    5, ActionType.ADD_COLUMN, 300, "ALTER TABLE `a` ADD COLUMN `v` INT DEFAULT 7",
    before=A, after=table(51, "a", column(1, "id"), column(2, "v", default="7")),
)  # fmt: skip
DROP = step(5, ActionType.DROP_TABLE, 300, "DROP TABLE `a`", before=A)


CASES: dict[str, tuple[Ddl, str, list[tuple[object, ...]]]] = {
    "ring": (RING, "SELECT 'a', id FROM d.a UNION ALL SELECT 'b', id FROM d.b", [("a", 2), ("b", 1)]),
    "exchange": (EXCHANGE, "SELECT 'a', id FROM d.a UNION ALL SELECT 'p', id FROM d.p", [("a", 50), ("p", 1)]),
    "truncate": (TRUNCATE, "SELECT COUNT(*) FROM d.a", [(0,)]),
    "add-column": (ADD, "SELECT * FROM d.a", [(1, 7)]),
    "drop": (DROP, "SHOW TABLES IN d LIKE 'a'", []),
}
REWRITTEN = step(
    5, ActionType.RECOVER_TABLE, 300, "CREATE TABLE `r` (`n` INT)", "INSERT INTO `r` VALUES (1)",
    "ALTER TABLE `r` ADD COLUMN `m` INT DEFAULT 2", "INSERT INTO `r` VALUES (3,4)", after=table(61, "r"),
)  # fmt: skip
REWRITTEN = replace(REWRITTEN, rewritten=True)
PARTS = PartitionInfo(PartitionType.RANGE, "`id`", definitions=tuple(
    PartitionDefinition(80 + n, f"p{n}", less_than=(bound,)) for n, bound in enumerate(("100", "1000"))))  # fmt: skip
WIDE = replace(table(54, "w"), partition=PARTS)
# A row that does not belong into the partition: upstream was told not to look, MariaDB always looks.
COPIED = step(
    5, ActionType.EXCHANGE_TABLE_PARTITION, 300, "ALTER TABLE `w` EXCHANGE PARTITION `p0` WITH TABLE `far`",
    changes=[(WIDE, WIDE), (table(55, "far"), table(80, "far"))],
)  # fmt: skip
CASES["copied"] = (COPIED, "SELECT 'far', id FROM d.far UNION ALL SELECT 'w', id FROM d.w ORDER BY 2",
                   [("far", 50), ("w", 500)])  # fmt: skip
HASHED = PartitionInfo(PartitionType.HASH, "`id`", enable=True, definitions=tuple(
    PartitionDefinition(90 + n, f"p{n}") for n in range(3)))  # fmt: skip
EMPTIED = replace(HASHED, definitions=(PartitionDefinition(99, "p0"), *HASHED.definitions[1:]))
H = table(56, "h", key=False)
# Upstream NULL lies in the first partition, here in the third: a statement for each.
CASES["emptied"] = (
    step(5, ActionType.TRUNCATE_TABLE_PARTITION, 300, "ALTER TABLE `h` TRUNCATE PARTITION `p0`",
         before=replace(H, partition=HASHED), after=replace(H, partition=EMPTIED)),
    "SELECT id FROM d.h", [(1,)])  # fmt: skip
CASES["rewritten"] = (REWRITTEN, "SELECT * FROM d.r ORDER BY n", [(1, 2), (3, 4)])
# One of two merged tables is dropped, which alone has the column `a`: its rows, then the column.
SOURCE = column(-2, "src", TEXT, origin_default="d.x")
BOTH, LEFT = (
    located(table(57, "m", *columns))
    for columns in ((column(1, "id"), column(2, "a"), SOURCE), (column(1, "id"), SOURCE))
)
MERGED = replace(
    step(5, ActionType.MULTI_SCHEMA_CHANGE, 300),
    changes=(TableChange(BOTH, LEFT, SourceRows(SOURCE)),),
    by_rules=True,
    merged=True,
)
CASES["merged"] = (MERGED, "SELECT * FROM d.m", [(1, "d.y")])
# Every point for the two that look the same before and after; for the others those on both sides of the statement.
KILLS = [(case, point) for case in ("ring", "exchange") for point in POINTS]
KILLS += [(case, point) for case in ("truncate", "add-column", "drop") for point in POINTS[2:4]]
KILLS += [("rewritten", f"sink.ddl_mark_{edge}:{n}") for edge in ("commit", "committed") for n in (2, 4)]
KILLS += [("copied", f"sink.ddl_after_exec:{n}") for n in range(1, 6)]
EDGES = ("ddl_marked", "ddl_after_exec", "ddl_mark_commit:2", "ddl_mark_committed:2", "before_commit", "after_commit")
KILLS += [("emptied", f"sink.{point}") for point in EDGES]
KILLS += [("copied", f"sink.ddl_mark_committed:{n}") for n in range(4, 7)]
KILLS += [("rewritten", "sink.ddl_after_exec:2"), ("rewritten", "sink.before_commit")]
KILLS += [
    ("merged", f"sink.{point}") for point in ("ddl_mark_commit", "ddl_mark_committed", "ddl_marked", "ddl_after_exec")
]


@pytest.mark.parametrize(("case", "point"), KILLS)
def test_ddl_of_killed_drainer_runs_once(db: MariaDB, tmp_path: Path, case: str, point: str) -> None:
    """Rule 18: a rerun of a ring or an exchange swaps back; the storage engine's ids tell that it was done."""
    ddl, query, wanted = CASES[case]
    setup_tables(db)
    follows = work(300, 400, Folded(shape("b", "id"), (put(9, b"(9)"),)))
    code = run_until_done(server_config(db), [("ddl", ddl), ("rows", follows)], point, tmp_path)
    assert code == -9
    assert [row for row in db.query(query) if 9 not in row] == wanted
    assert position(db) == 400
    assert db.query("SELECT job_id, state FROM tidb_binlog.drainer_ddl") == [(5, "done")]


def test_ddl_of_drainer_killed_twice_runs_once(db: MariaDB, tmp_path: Path) -> None:
    """The second life goes on behind the statement that the first was killed in, and dies behind the rows that follow:
    the third must not take the table's old look for a sign that the next statement was done."""
    setup_tables(db)
    config = server_config(db)
    assert start(config, [("ddl", COPIED)], tmp_path, "sink.ddl_after_exec:3").wait() == -9
    assert db.query("SELECT COUNT(*) FROM d.w") == [(1,)]
    assert run_until_done(config, [("ddl", COPIED)], "sink.ddl_mark_committed", tmp_path) == -9
    query, wanted = CASES["copied"][1:]
    assert db.query(query) == wanted


def test_interrupted_ddl_without_table_ids_asks_operator(db: MariaDB, tmp_path: Path) -> None:
    """Rule 18: a user who may not read InnoDB's ids gets the question instead of a guess, and both answers work."""
    db.query("CREATE USER IF NOT EXISTS 'small'@'%' IDENTIFIED BY 'small'")
    db.query("GRANT ALL ON d.* TO 'small'@'%'")
    db.query("GRANT ALL ON tidb_binlog.* TO 'small'@'%'")
    for answer in ("done", "rerun"):
        db.query("DROP DATABASE IF EXISTS tidb_binlog")
        db.query("DROP DATABASE d")
        db.query("CREATE DATABASE d")
        setup_tables(db)
        config = server_config(db, user="small", password="small")
        with pytest.raises(ChildFailed):
            run_until_done(config, [("ddl", RING)], "sink.ddl_after_exec", tmp_path)
        with pytest.raises(DdlUndecided, match="set state to 'done' or to 'rerun'"):
            MySQLSink(config).open(IDENTITY, 100)
        db.query("UPDATE tidb_binlog.drainer_ddl SET state=%s", answer)
        destination = opened(db, user="small", password="small")
        if not destination.job_done(5):
            destination.ddl(RING)
        assert db.query("SELECT id FROM d.a") == [(2 if answer == "done" else 1,)]
        destination.close(clean=True)


def test_ddl_with_lost_connection_is_checked_and_not_repeated(db: MariaDB) -> None:
    """The server ends our connection while the statement runs; it is settled as after a crash, in the same call."""
    db.query("CREATE TABLE d.a (id INT PRIMARY KEY)")
    destination = opened(db)
    with db.connect(autocommit=False) as blocker, blocker.cursor() as cursor:
        cursor.execute("SELECT * FROM d.a")  # holds a metadata lock: the ALTER waits
        cursor.execute("SELECT IS_USED_LOCK('tidb_binlog/7/main')")
        (holder,) = cursor.fetchone()
        thread = threading.Thread(target=lambda: destination.ddl(ADD))
        thread.start()
        waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE '%metadata lock%'"
        while db.query(waiting) == [(0,)]:
            thread.join(0.02)
        db.query(f"KILL {holder}")
        thread.join(1)
        blocker.commit()
        thread.join(120)
    assert [row[0] for row in db.query("SHOW COLUMNS FROM d.a")] == ["id", "v"]
    assert position(db) == 300


def test_ddl_still_running_after_its_drainer_died_is_waited_for(db: MariaDB, tmp_path: Path) -> None:
    """The drainer is killed while the server copies a table: the next one does not end that and begin again."""
    slow = replace(ADD, sql=(f"{ADD.sql[0]}, ALGORITHM=COPY",), rewritten=True)
    running = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'ALTER TABLE%'"

    def has_run() -> bool:
        return len(db.query("SHOW COLUMNS FROM d.a")) == 2

    for rows in (600_000, 1_200_000, 2_400_000):
        db.query("DROP DATABASE IF EXISTS tidb_binlog")
        db.query("CREATE OR REPLACE TABLE d.a (id INT PRIMARY KEY)")
        db.query(f"INSERT INTO d.a SELECT seq FROM d.seq_1_to_{rows}")
        child = start(server_config(db), [("ddl", slow)], tmp_path)
        ends_s = time.monotonic() + 120
        while db.query(running) != [(1,)] and not has_run():  # not wait_until, whose pauses grow: it may be a moment
            assert time.monotonic() < ends_s, "the statement is not begun"
            time.sleep(0.005)
        child.kill()
        child.wait()
        if db.query(running) == [(1,)]:  # else the copy was done before this process got to look: a longer one
            break
    else:
        pytest.fail("no copy outlived its drainer")
    assert opened(db, lock_wait_s=0).job_done(5)
    assert [row[0] for row in db.query("SHOW COLUMNS FROM d.a")] == ["id", "v"]
    assert position(db) == 300


def test_early_ddl_is_skipped_at_its_own_binlog(db: MariaDB) -> None:
    """Rule 14: it ran before a row that needs it, under its job's id; the position is just before that row."""
    setup_tables(db)
    destination = opened(db)
    early = replace(ADD, commit_ts=149, early=True, own_ts=300)
    destination.ddl(early)
    a = shape("a", "id v")
    destination.apply(work(149, 299, Folded(a, (put(2, b"(2,9)"),))), 5)
    assert destination.job_done(5)
    again = opened(db)
    assert again.job_done(5)
    again.advance(300, 5)
    assert db.query("SELECT * FROM d.a ORDER BY id") == [(1, 7), (2, 9)]
    assert position(db) == 300


def test_fenced_driver_runs_no_ddl(db: MariaDB) -> None:
    """Rule 15: its connection is gone with its lock, and its epoch is not the destination's."""
    old = opened(db)
    opened(db)
    with pytest.raises((Fenced, LockHeld)):
        old.ddl(CREATE)
    with pytest.raises(pymysql.err.ProgrammingError, match="1146"):
        db.query("SELECT * FROM d.t")
