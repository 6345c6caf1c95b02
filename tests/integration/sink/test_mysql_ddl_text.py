"""What a DDL leaves in a MySQL-like server: upstream's meaning, also where its text cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog import tso
from binlog.tidb.job import ActionType
from binlog.tidb.partition import PartitionInfo, PartitionType
from binlog.tidb.table import DBInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.sink.errors import DdlFailed
from tests.integration.sink.case import opened
from tests.integration.sink.ddl_case import TEXT, T, column, position, step, table
from tests.support import MariaDB

pytestmark = pytest.mark.integration


def test_tables_get_upstreams_collation_whatever_the_servers_default(db: MariaDB) -> None:
    """MariaDB's utf8mb4 is utf8mb4_general_ci and this database is latin1; TiDB's table is utf8mb4_bin."""
    db.query("CREATE DATABASE l DEFAULT CHARSET latin1")
    after = table(50, "t", column(1, "id"), column(2, "c", TEXT))
    destination = opened(db)
    plain = step(1, ActionType.CREATE_TABLE, 200, "CREATE TABLE `t` (`id` INT PRIMARY KEY,`c` VARCHAR(20))",
                 after=after, schema="l", use="l")  # fmt: skip
    named = step(2, ActionType.CREATE_TABLE, 300,
                 "CREATE TABLE `u` (`id` INT PRIMARY KEY,`c` VARCHAR(20) CHARACTER SET UTF8MB4) "
                 "DEFAULT CHARACTER SET = UTF8MB4", after=table(51, "u"), schema="l", use="l")  # fmt: skip
    destination.ddl(plain)
    destination.ddl(named)
    collations = db.query("SELECT DISTINCT COLLATION_NAME FROM information_schema.COLUMNS"
                          " WHERE TABLE_SCHEMA='l' AND COLUMN_NAME='c'")  # fmt: skip
    assert collations == [("utf8mb4_bin",)]
    destination.ddl(
        step(
            3,
            ActionType.CREATE_SCHEMA,
            400,
            "CREATE DATABASE `n`",
            schema="n",
            use="",
            database=DBInfo(9, "n", "utf8mb4", "utf8mb4_bin"),
        )
    )
    assert db.query("SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME='n'") == [
        ("utf8mb4_bin",)
    ]


def test_an_added_timestamp_is_upstreams_moment(db: MariaDB) -> None:
    """CURRENT_TIMESTAMP of rows that were there is when upstream ran it; a literal was written in another zone."""
    stamp = FieldType(Tp.TIMESTAMP, flen=19)
    old = table(50, "t", column(1, "id"))
    new = table(50, "t", column(1, "id"),
                column(2, "a", stamp, default="CURRENT_TIMESTAMP", origin_default="2020-01-02 03:04:05"),
                column(3, "b", stamp, default="2020-06-01 07:00:00", origin_default="2020-06-01 07:00:00"))  # fmt: skip
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    db.query("INSERT INTO d.t VALUES (1)")
    sql = (
        "ALTER TABLE `t` ADD COLUMN `a` TIMESTAMP DEFAULT CURRENT_TIMESTAMP, "
        "ADD COLUMN `b` TIMESTAMP DEFAULT _UTF8MB4'2020-06-01 12:00:00'"
    )
    opened(db).ddl(step(1, ActionType.MULTI_SCHEMA_CHANGE, 200, sql, before=old, after=new))
    assert db.query("SELECT CONCAT(a), CONCAT(b) FROM d.t") == [("2020-01-02 03:04:05", "2020-06-01 07:00:00")]


def test_standing_rows_change_as_upstream_changed_them(db: MariaDB) -> None:
    """A TIMESTAMP becomes a DATETIME in the writer's zone, a TIME gets upstream's day, a new JSON NOT NULL is the JSON
    null, a new TIMESTAMP NOT NULL is zero; a column that moves with UPDATE does not move."""
    stamp, moment = FieldType(Tp.TIMESTAMP, flen=19), FieldType(Tp.DATETIME, flen=19)
    moving = column(2, "m", replace(stamp, flag=int(Flag.ON_UPDATE_NOW)), default="CURRENT_TIMESTAMP")
    db.query(
        "CREATE TABLE d.t (id INT PRIMARY KEY, m TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP, a TIMESTAMP NULL, b TIME)"
    )
    db.query("INSERT INTO d.t VALUES (1,'2020-01-01 00:00:00','2020-01-01 12:00:00','10:00:00')")
    old = table(50, "t", column(1, "id"), moving, column(3, "a", stamp), column(4, "b", FieldType(Tp.DURATION)))
    new = table(50, "t", column(1, "id"), moving, column(5, "a", moment), column(6, "b", moment),
                column(7, "j", FieldType(Tp.JSON, flag=int(Flag.NOT_NULL))),
                column(8, "s", replace(stamp, flag=int(Flag.NOT_NULL))))  # fmt: skip
    sql = (
        "ALTER TABLE `t` MODIFY COLUMN `a` DATETIME, MODIFY COLUMN `b` DATETIME, ADD COLUMN `j` JSON NOT NULL, "
        "ADD COLUMN `s` TIMESTAMP NOT NULL"
    )
    late = tso.compose(1_600_000_000_000)  # 2020-09-13
    change = step(1, ActionType.MULTI_SCHEMA_CHANGE, late, sql, before=old, after=new)
    zone = {"reorg_meta": {"location": {"name": "Asia/Kolkata", "offset": 0}}}  # the server has no table of zones
    opened(db).ddl(replace(change, job=replace(change.job, rest=zone)))
    columns = ", ".join(f"CONCAT({name})" for name in "mabjs")
    assert db.query(f"SELECT {columns} FROM d.t") == [
        ("2020-01-01 00:00:00", "2020-01-01 17:30:00", "2020-09-13 10:00:00", "null", "0000-00-00 00:00:00")
    ]


def test_a_text_the_server_cannot_read_is_said_from_the_table_info(db: MariaDB) -> None:
    """TiDB's own options outside of comments, as users write them; what no row depends on is left out."""
    wide = table(50, "t", column(1, "id"), column(2, "v", TEXT, default="x'y", comment="c"))
    destination = opened(db)
    texts = (
        ("CREATE TABLE t (id INT PRIMARY KEY CLUSTERED) SHARD_ROW_ID_BITS = 4", None, T),
        ("ALTER TABLE t ADD COLUMN v VARCHAR(20) DEFAULT 'x''y' COMMENT 'c', AUTO_ID_CACHE 7", T, wide),
        ("ALTER TABLE t TTL = v + INTERVAL 1 DAY", wide, wide),
    )
    for n, (text, before, after) in enumerate(texts, start=1):
        kind = ActionType.MULTI_SCHEMA_CHANGE if before else ActionType.CREATE_TABLE
        destination.ddl(step(n, kind, 200 + n, text, before=before, after=after))
    db.query("INSERT INTO d.t (id) VALUES (1)")
    assert db.query("SELECT * FROM d.t") == [(1, "x'y")]
    assert position(db) == 203
    with pytest.raises(DdlFailed, match="1064"):
        destination.ddl(step(9, ActionType.EXCHANGE_TABLE_PARTITION, 300, "ALTER TABLE t SWAP", before=T, after=T))


def test_a_view_never_stops_and_never_shows_more(db: MariaDB) -> None:
    """Only a privileged user may make a view for another; without that right it is the reader's own rights that count.
    One that the destination cannot have is left out: no row is in it."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    db.query("CREATE USER IF NOT EXISTS 'small'@'%' IDENTIFIED BY 'small'")
    for schema in ("d", "tidb_binlog"):
        db.query(f"GRANT ALL ON {schema}.* TO 'small'@'%'")
    view = replace(table(60, "v"), rest={"view": {}})
    head = "CREATE ALGORITHM = UNDEFINED DEFINER = `root`@`%` SQL SECURITY DEFINER VIEW"
    destination = opened(db, user="small", password="small")
    destination.ddl(step(1, ActionType.CREATE_VIEW, 200, f"{head} `v` (`a`) AS SELECT `id` FROM `d`.`t`", after=view))
    destination.ddl(step(2, ActionType.CREATE_VIEW, 300, f"{head} `w` AS SELECT TIDB_VERSION()", after=view))
    assert db.query("SELECT SECURITY_TYPE FROM information_schema.VIEWS WHERE TABLE_SCHEMA='d'") == [("INVOKER",)]
    assert position(db) == 300


def test_foreign_keys_come_and_go_as_upstream_names_them(db: MariaDB) -> None:
    """Both tables' keys are fk_1 to TiDB; dropped under that name they do not keep their column, and one that the
    server cannot have is left out."""
    key = {"fk_name": {"O": "fk_1", "L": "fk_1"}, "cols": [{"O": "p", "L": "p"}]}
    db.query("CREATE TABLE d.par (id INT PRIMARY KEY)")
    destination = opened(db)
    for n, name in enumerate(("a", "b"), start=60):
        with_key = replace(table(n, name, column(1, "id"), column(2, "p")), rest={"fk_info": [key]})
        text = f"CREATE TABLE `{name}` (`id` INT PRIMARY KEY,`p` INT,FOREIGN KEY (`p`) REFERENCES `par`(`id`))"
        destination.ddl(step(n, ActionType.CREATE_TABLE, 100 + n, text, after=with_key))
    count = "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA='d'"
    assert db.query(count) == [(2,)]
    without = replace(with_key, rest={})
    text = "ALTER TABLE `b` DROP FOREIGN KEY `fk_1`"
    destination.ddl(step(70, ActionType.DROP_FOREIGN_KEY, 170, text, before=with_key, after=without))
    text = "ALTER TABLE `b` DROP COLUMN `p`"
    destination.ddl(step(71, ActionType.DROP_COLUMN, 171, text, before=without, after=table(61, "b")))
    assert db.query(count) == [(1,)]
    wrong = "CREATE TABLE `c` (`id` INT PRIMARY KEY,CONSTRAINT `x` FOREIGN KEY (`id`) REFERENCES `a`(`p2`))"
    destination.ddl(step(72, ActionType.CREATE_TABLE, 172, wrong, after=table(62, "c")))
    assert ("c",) in db.query("SHOW TABLES IN d")


def test_partitions_whose_rows_are_others_here_are_not_emptied(db: MariaDB) -> None:
    """TiDB's hash of a KEY partition is not MySQL's: the same name holds other rows."""
    parts = PartitionInfo(PartitionType.KEY, columns=("id",), num=2)
    info = replace(T, partition=parts)
    text = "ALTER TABLE `t` TRUNCATE PARTITION `p1`"
    with pytest.raises(DdlFailed, match="PARTITION BY KEY hold other rows"):
        opened(db).ddl(step(1, ActionType.TRUNCATE_TABLE_PARTITION, 200, text, before=info, after=info))


def test_tables_without_a_text(db: MariaDB) -> None:
    """A service or a restore may publish several tables at once, and no statement."""
    many = step(1, ActionType.CREATE_TABLES, 200, changes=[(None, table(51, "a")), (None, table(52, "b"))])
    opened(db).ddl(many)
    assert db.query("SHOW TABLES IN d") == [("a",), ("b",)]


def test_a_global_temporary_table_is_left_to_upstream(db: MariaDB) -> None:
    """Its rows are in no binlog."""
    info = replace(T, rest={"temp_table_type": 1})
    destination = opened(db)
    destination.ddl(step(1, ActionType.CREATE_TABLE, 200, "CREATE GLOBAL TEMPORARY TABLE `t` (`id` INT)", after=info))
    destination.ddl(step(2, ActionType.ADD_INDEX, 210, "CREATE INDEX `i` ON `t` (`id`)", before=info, after=info))
    destination.ddl(step(3, ActionType.DROP_TABLE, 220, "DROP TABLE `t`", before=info))
    assert db.query("SHOW TABLES IN d") == []


def test_comments_are_run_as_upstream_runs_them(db: MariaDB) -> None:
    """`/*M! … */` is code to MariaDB alone, `/*!999999 … */` and `/*T! … */` to TiDB alone: what upstream ran runs, and
    nothing else. An operator's text is the destination's own."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, a INT, b INT)")
    destination = opened(db)
    after = table(50, "t", column(1, "id"))
    names = "SELECT GROUP_CONCAT(COLUMN_NAME ORDER BY ORDINAL_POSITION) FROM information_schema.COLUMNS" \
            " WHERE TABLE_SCHEMA='d'"  # fmt: skip
    sql = "/* x */ ALTER TABLE `t` ADD `c` INT /*M! , DROP `a` */ /*M!100100 , DROP `b` */ /*T![no] , DROP `b` */"
    destination.ddl(step(1, ActionType.ADD_COLUMN, 200, sql, before=after, after=after))
    assert db.query(names) == [("id,a,b,c",)]
    sql = "ALTER TABLE `t` /*!999999 ADD `d` INT */ /*T! , ADD `e` INT */, /*T! SHARD_ROW_ID_BITS = 4 */"
    destination.ddl(step(2, ActionType.ADD_COLUMN, 300, sql, before=after, after=after))
    assert db.query(names) == [("id,a,b,c,d,e",)]
    own = replace(step(3, ActionType.DROP_COLUMN, 400, "ALTER TABLE `t` /*M! DROP `e` */"), rewritten=True)
    destination.ddl(own)
    assert db.query(names) == [("id,a,b,c,d",)]
