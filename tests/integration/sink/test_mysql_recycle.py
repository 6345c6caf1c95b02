"""The recycle bin on a real server: what upstream drops comes back with its rows, through kills, or expires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.cluster import tso
from binlog.tidb.job import ActionType
from binlog.tidb.table import DBInfo, TableInfo

from drainer.batch.work import Folded
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.errors import DdlFailed
from tests.integration.sink.case import opened, put, server_config, shape, work
from tests.integration.sink.child import run_until_done
from tests.integration.sink.ddl_case import column, step, table
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

A, B = table(51, "a"), table(52, "b")
DROP = step(5, ActionType.DROP_TABLE, 300, "DROP TABLE IF EXISTS `d`.`a`", before=A)
TRUNCATE = step(5, ActionType.TRUNCATE_TABLE, 300, "TRUNCATE TABLE `a`", before=A, after=table(61, "a"))
DROP_DB = step(
    5, ActionType.DROP_SCHEMA, 300, "DROP DATABASE `d`", changes=[(A, None), (B, None)], use="",
)  # fmt: skip
BIN = "tidb_binlog"


def back(job_id: int, commit_ts: int, info: TableInfo) -> Ddl:
    return step(job_id, ActionType.RECOVER_TABLE, commit_ts, "FLASHBACK TABLE `a` TO `x`", after=info)


def database_back(job_id: int, commit_ts: int, name: str, tables: Sequence[TableInfo]) -> Ddl:
    """FLASHBACK DATABASE `d` TO `name`."""
    made = step(
        job_id, ActionType.RECOVER_SCHEMA, commit_ts, f"FLASHBACK DATABASE `d` TO `{name}`",
        schema=name, use="", database=DBInfo(9, name, "utf8mb4", "utf8mb4_bin"),
    )  # fmt: skip
    return replace(made, changes=tuple(TableChange(None, Located(t.id, name, t)) for t in tables))


def setup_tables(db: MariaDB) -> None:
    for name, row in (("a", 1), ("b", 2)):
        db.query(f"CREATE TABLE d.{name} (id INT PRIMARY KEY)")
        db.query(f"INSERT INTO d.{name} VALUES ({row})")


def names(db: MariaDB, schema: str) -> list[str]:
    """Tables of a schema, without those in which the drainer keeps its books."""
    books = ("drainer_", "checkpoint")
    return sorted(str(name) for (name,) in db.query(f"SHOW TABLES IN {schema}") if not str(name).startswith(books))


def test_recovered_table_has_its_new_name_and_rows(db: MariaDB) -> None:
    """FLASHBACK TABLE a TO x, after another a was made."""
    setup_tables(db)
    destination = opened(db)
    destination.ddl(DROP)
    assert names(db, "d") == ["b"]
    destination.ddl(step(6, ActionType.CREATE_TABLE, 310, "CREATE TABLE `a` (`v` INT)", after=table(70, "a")))
    destination.ddl(back(7, 320, table(51, "x")))
    destination.apply(work(320, 330, Folded(shape("x", "id"), (put(8, b"(8)"),))), 7)
    assert db.query("SELECT id FROM d.x ORDER BY id") == [(1,), (8,)]
    assert db.query("SELECT * FROM d.a") == []
    assert names(db, BIN) == []


def test_truncated_table_is_recovered_beside_its_successor(db: MariaDB) -> None:
    """Partitions, keys and collations stay with the empty table."""
    db.query(
        "CREATE TABLE d.a (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(9) COLLATE latin1_bin, KEY k (v),"
        " CHECK (v<>'q')) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    )
    before = db.query("SHOW CREATE TABLE d.a")
    db.query("INSERT INTO d.a VALUES (1,'x'),(11,'y')")
    destination = opened(db)
    destination.ddl(TRUNCATE)
    assert db.query("SHOW CREATE TABLE d.a") == before
    assert db.query("SELECT * FROM d.a") == []
    destination.ddl(back(7, 320, table(51, "x")))
    assert db.query("SELECT id FROM d.x ORDER BY id") == [(1,), (11,)]


def test_dropped_database_is_recovered_under_another_name(db: MariaDB) -> None:
    """With its charset and its views; a view that means nothing there is left out."""
    setup_tables(db)
    destination = opened(db)
    destination.ddl(DROP_DB)
    assert ("d",) not in db.query("SHOW DATABASES")
    good = replace(table(60, "w", column(1, "n")), rest={"view": {"view_select": "SELECT `id` AS `n` FROM `e`.`a`"}})
    lost = replace(table(61, "z", column(1, "n")), rest={"view": {"view_select": "SELECT `id` AS `n` FROM `d`.`a`"}})
    destination.ddl(database_back(7, 320, "e", [A, B, good, lost]))
    assert names(db, "e") == ["a", "b", "w"]
    assert db.query("SELECT * FROM e.w") == [(1,)]
    assert "utf8mb4_bin" in str(db.query("SHOW CREATE DATABASE e"))


def test_recovered_table_gets_its_foreign_keys_again(db: MariaDB) -> None:
    """A child goes and comes back; a parent that is still referred to is dropped as before, with a log line."""
    setup_tables(db)
    db.query("ALTER TABLE d.a ADD COLUMN p INT, ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES d.b (id)")
    key = {
        "fk_name": {"O": "f", "L": "f"}, "ref_schema": {"O": "d", "L": "d"}, "ref_table": {"O": "b", "L": "b"},
        "ref_cols": [{"O": "id", "L": "id"}], "cols": [{"O": "p", "L": "p"}], "on_delete": 2, "on_update": 0,
    }  # fmt: skip
    child = replace(table(51, "a", column(1, "id"), column(2, "p")), rest={"fk_info": [key]})
    destination = opened(db)
    for n in (0, 1):  # twice: constraint names are unique in a schema, the bin's too
        destination.ddl(replace(DROP, job=replace(DROP.job, id=5 + n), commit_ts=300 + 10 * n))
        assert len(names(db, BIN)) == 1
        destination.ddl(back(7 + n, 305 + 10 * n, child))
    assert "CONSTRAINT `f` FOREIGN KEY (`p`) REFERENCES `b` (`id`) ON DELETE CASCADE" in str(
        db.query("SHOW CREATE TABLE d.a")
    )
    destination.ddl(step(10, ActionType.DROP_TABLE, 400, "DROP TABLE IF EXISTS `d`.`b`", before=B))
    assert names(db, "d") == ["a"]
    assert names(db, BIN) == []
    assert "REFERENCES `b`" in str(db.query("SHOW CREATE TABLE d.a"))


def test_table_with_triggers_is_dropped_without_recycle_bin(db: MariaDB) -> None:
    """They cannot change schema; upstream's statement runs instead."""
    setup_tables(db)
    db.query("CREATE TRIGGER d.g BEFORE INSERT ON d.a FOR EACH ROW SET @a=1")
    destination = opened(db)
    destination.ddl(TRUNCATE)
    assert db.query("SELECT COUNT(*) FROM d.a") == [(0,)]
    destination.ddl(step(6, ActionType.DROP_TABLE, 400, "DROP TABLE IF EXISTS `d`.`a`", before=table(61, "a")))
    assert names(db, "d") == ["b"]
    with pytest.raises(DdlFailed, match=r"d\.x \(id 51\) is not in the recycle bin"):
        destination.ddl(back(7, 420, table(51, "x")))


def test_table_without_right_to_move_is_dropped_without_recycle_bin(db: MariaDB) -> None:
    """A user without rights on the bin's schema: no bin, no stop."""
    setup_tables(db)
    db.query("CREATE USER IF NOT EXISTS 'small'@'%' IDENTIFIED BY 'small'")
    db.query("GRANT ALL ON d.* TO 'small'@'%'")
    db.query("GRANT ALL ON tidb_binlog.* TO 'small'@'%'")
    destination = opened(db, user="small", password="small", recycle_schema="bin")
    destination.ddl(TRUNCATE)
    db.query("CREATE DATABASE bin")  # exists, but is not theirs
    destination.ddl(replace(DROP, job=replace(DROP.job, id=6), commit_ts=310))
    assert names(db, "d") == ["b"]
    assert names(db, "bin") == []


def test_drop_with_disabled_recycle_bin_drops_table(db: MariaDB) -> None:
    setup_tables(db)
    destination = opened(db, recycle_keep_ms=0)
    destination.ddl(DROP)
    assert names(db, BIN) == []
    with pytest.raises(DdlFailed, match="ddl-rewrite"):
        destination.ddl(back(7, 420, table(51, "x")))
    destination.ddl(replace(back(7, 420, table(51, "x")), sql=(), rewritten=True))


def test_recover_of_table_that_already_exists_is_done(db: MariaDB) -> None:
    setup_tables(db)
    opened(db).ddl(back(7, 420, A), may_exist=True)
    assert db.query("SELECT * FROM d.a") == [(1,)]


def test_recycled_tables_expire_by_streams_time(db: MariaDB) -> None:
    """An hour of the stream, however fast it is replayed; also after a restart, and rows alone are enough."""
    setup_tables(db)
    at = tso.compose(1_000_000_000)
    late = at + tso.compose(3_600_000)
    destination = opened(db, at=at - 5)
    destination.ddl(replace(DROP, commit_ts=at))
    destination.ddl(step(6, ActionType.DROP_TABLE, at + tso.compose(60_000), "DROP TABLE IF EXISTS `d`.`b`", before=B))
    again = opened(db, at=0)
    again.advance(late, 6)
    assert len(names(db, BIN)) == 2
    again.advance(late + tso.compose(1), 6)
    assert [name.split("_")[3] for name in names(db, BIN)] == ["52"]
    other = opened(db, recycle_keep_ms=0)  # what was kept goes when the bin is switched off
    assert names(db, BIN) == []
    other.close(clean=True)


def test_recycled_table_in_use_is_purged_later(db: MariaDB) -> None:
    setup_tables(db)
    destination = opened(db)
    destination.ddl(DROP)
    with db.connect(autocommit=False) as reader, reader.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {BIN}.`{names(db, BIN)[0]}`")
        destination.advance(tso.compose(10_000_000_000), 5)
        reader.commit()
    assert len(names(db, BIN)) == 1
    opened(db)
    assert names(db, BIN) == []


STATEMENT = ("sink.ddl_marked", "sink.ddl_after_exec")
CASES: dict[str, tuple[list[Ddl], int, str, list[tuple[object, ...]]]] = {
    "drop": ([DROP], 1, "SELECT table_name FROM information_schema.tables WHERE table_schema='d'", [("b",)]),
    "truncate": ([TRUNCATE], 2, "SELECT COUNT(*) FROM d.a", [(0,)]),
    "drop-database": ([DROP_DB], 2, "SELECT 1 FROM information_schema.schemata WHERE schema_name='d'", []),
}
KILLS = [(case, f"{point}:{n}") for case in CASES for point in STATEMENT for n in range(1, 1 + CASES[case][1])] + [
    ("truncate", "sink.ddl_before_mark"),
    ("truncate", "sink.before_commit"),
    ("truncate", "sink.after_commit"),
]


@pytest.mark.parametrize(("case", "point"), KILLS)
def test_recycle_and_recover_of_killed_drainer_happen_once(db: MariaDB, tmp_path: Path, case: str, point: str) -> None:
    """Rule 18: once, at every place; the rows come back whole, and the way back survives the same kill."""
    steps, _, query, wanted = CASES[case]
    setup_tables(db)
    assert run_until_done(server_config(db), [("ddl", s) for s in steps], point, tmp_path) == -9
    assert db.query(query) == wanted
    returned = database_back(9, 500, "e", [A, B]) if case == "drop-database" else back(9, 500, table(51, "x"))
    home = "e.a" if case == "drop-database" else "d.x"
    place = point.partition(":")[0]
    assert run_until_done(server_config(db), [("ddl", returned)], place, tmp_path) == -9
    assert db.query(f"SELECT * FROM {home}") == [(1,)]
    assert names(db, BIN) == []
    assert db.query("SELECT commit_ts FROM tidb_binlog.drainer_position") == [(500,)]
    assert db.query("SELECT state FROM tidb_binlog.drainer_ddl") == [("done",), ("done",)]
