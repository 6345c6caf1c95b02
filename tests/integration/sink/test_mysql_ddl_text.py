"""What a DDL leaves in a MySQL-like server: upstream's meaning, also where its text cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.cluster import tso
from binlog.tidb.document import Json
from binlog.tidb.job import ActionType
from binlog.tidb.table import DBInfo, IndexColumn, IndexInfo, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.sink.errors import DdlFailed
from tests.integration.sink.case import opened
from tests.integration.sink.ddl_case import TEXT, T, column, position, step, table
from tests.support.ddl_case import foreign_key
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration


def test_created_table_has_upstreams_collation_for_any_server_default(db: MariaDB) -> None:
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


def test_added_timestamp_column_has_upstreams_moment(db: MariaDB) -> None:
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


def test_existing_rows_change_as_upstream_changed_them(db: MariaDB) -> None:
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


def test_ddl_follows_table_info_and_not_text(db: MariaDB) -> None:
    """TiDB's own options, other comments that are code here, engines: nothing of the text reaches the server."""
    wide = table(50, "t", column(1, "id"), column(2, "v", TEXT, default="x'y", comment="c"))
    destination = opened(db)
    texts = (
        ("CREATE TABLE t (id INT PRIMARY KEY CLUSTERED) SHARD_ROW_ID_BITS = 4 ENGINE = BLACKHOLE", None, T),
        (
            "ALTER TABLE t ADD COLUMN v VARCHAR(20) DEFAULT 'x''y' COMMENT 'c', AUTO_ID_CACHE 7 /*M! , DROP id */",
            T,
            wide,
        ),
        ("ALTER TABLE t TTL = v + INTERVAL 1 DAY", wide, wide),
    )
    for n, (text, before, after) in enumerate(texts, start=1):
        kind = ActionType.MULTI_SCHEMA_CHANGE if before else ActionType.CREATE_TABLE
        destination.ddl(step(n, kind, 200 + n, text, before=before, after=after))
    db.query("INSERT INTO d.t (id) VALUES (1)")
    assert db.query("SELECT * FROM d.t") == [(1, "x'y")]
    assert position(db) == 203


def test_ddl_text_runs_where_former_table_is_unknown(db: MariaDB) -> None:
    """As TiDB ran it: `/*M! … */` is code to MariaDB alone, `/*!999999 … */` to TiDB alone."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, a INT)")
    destination = opened(db)
    text = "ALTER TABLE `t` ADD `c` INT /*M! , DROP `a` */ /*!999999 , ADD `d` INT */"
    destination.ddl(step(1, ActionType.ADD_COLUMN, 200, text, after=T))
    names = "SELECT GROUP_CONCAT(COLUMN_NAME ORDER BY ORDINAL_POSITION) FROM information_schema.COLUMNS" \
            " WHERE TABLE_SCHEMA='d'"  # fmt: skip
    assert db.query(names) == [("id,a,c,d",)]
    with pytest.raises(DdlFailed, match="1064"):
        destination.ddl(step(9, ActionType.EXCHANGE_TABLE_PARTITION, 300, "ALTER TABLE t SWAP", before=T, after=T))


def test_view_ddl_without_rights_uses_readers_rights_or_is_left_out(db: MariaDB) -> None:
    """Only a privileged user may make a view for another; without that right it is the reader's own rights that count.
    One that the destination cannot have is left out: no row is in it."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    db.query("CREATE USER IF NOT EXISTS 'small'@'%' IDENTIFIED BY 'small'")
    for schema in ("d", "tidb_binlog"):
        db.query(f"GRANT ALL ON {schema}.* TO 'small'@'%'")
    definer = {"Username": "root", "Hostname": "%", "CurrentUser": False}
    destination = opened(db, user="small", password="small")
    for n, (name, select) in enumerate((("v", "SELECT `d`.`t`.`id` FROM `d`.`t`"), ("w", "SELECT TIDB_VERSION()"))):
        said = {"view_select": select, "view_definer": definer, "view_security": 0, "view_algorithm": 0}
        view = replace(table(60 + n, name), rest={"view": said})
        destination.ddl(step(1 + n, ActionType.CREATE_VIEW, 200 + n, "CREATE DEFINER = `root`@`%` …", after=view))
    assert db.query("SELECT TABLE_NAME, SECURITY_TYPE FROM information_schema.VIEWS WHERE TABLE_SCHEMA='d'") == [
        ("v", "INVOKER")
    ]
    assert position(db) == 201


def test_foreign_keys_with_generated_names_are_added_and_dropped(db: MariaDB) -> None:
    """Both tables' keys are fk_1 to TiDB; dropped under that name they do not keep their column, also where an earlier
    release left them under it; one that the server cannot have is left out."""
    db.query("CREATE TABLE d.par (id INT PRIMARY KEY)")
    destination = opened(db)

    def with_key(table_id: int, name: str, **more: Json) -> TableInfo:
        key = {**foreign_key(1, "fk_1"), "ref_table": {"O": "par"}, "cols": [{"O": "p"}], **more}
        return replace(table(table_id, name, column(1, "id"), column(2, "p")), rest={"fk_info": [key]})

    for n, name in enumerate(("a", "b"), start=60):
        destination.ddl(step(n, ActionType.CREATE_TABLE, 100 + n, "…", after=with_key(n, name)))
    count = "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA='d'"
    assert db.query(count) == [(2,)]
    db.query("ALTER TABLE d.a DROP FOREIGN KEY fk_1_60, ADD CONSTRAINT fk_1 FOREIGN KEY (p) REFERENCES par (id)")
    for n, name in enumerate(("a", "b"), start=60):
        without = replace(with_key(n, name), rest={})
        destination.ddl(
            step(10 + n, ActionType.DROP_FOREIGN_KEY, 200 + 2 * n, "…", before=with_key(n, name), after=without)
        )
        destination.ddl(step(20 + n, ActionType.DROP_COLUMN, 201 + 2 * n, "…", before=without, after=table(n, name)))
    assert db.query(count) == [(0,)]
    wrong = with_key(70, "c", ref_cols=[{"O": "nothere"}])
    destination.ddl(step(90, ActionType.CREATE_TABLE, 400, "…", after=wrong))
    assert db.query("SELECT * FROM d.c") == []
    assert db.query(count) == [(0,)]


def test_truncate_of_key_partition_is_refused(db: MariaDB) -> None:
    """TiDB's hash of a KEY partition is not MySQL's: the same name holds other rows."""
    info = replace(T, partition=PartitionInfo(PartitionType.KEY, columns=("id",), num=2))
    text = "ALTER TABLE `t` TRUNCATE PARTITION `p1`"
    with pytest.raises(DdlFailed, match="PARTITION BY KEY hold other rows"):
        opened(db).ddl(step(1, ActionType.TRUNCATE_TABLE_PARTITION, 200, text, before=info, after=info))


def test_tables_published_without_query_text_are_created(db: MariaDB) -> None:
    """A service or a restore may publish several tables at once, and no statement."""
    many = step(1, ActionType.CREATE_TABLES, 200, changes=[(None, table(51, "a")), (None, table(52, "b"))])
    opened(db).ddl(many)
    assert db.query("SHOW TABLES IN d") == [("a",), ("b",)]


def test_column_ddl_keeps_what_destination_has_changed(db: MariaDB) -> None:
    """Somebody made it wider here: a new default or name does not take that back."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, a BIGINT, KEY k (a))")
    db.query("INSERT INTO d.t VALUES (1,99999999999)")
    destination = opened(db)
    key = IndexInfo(2, "k", (IndexColumn("a", 1),))
    one = table(50, "t", column(1, "id"), column(2, "a"), indexes=[key])
    other = table(50, "t", column(1, "id"), column(2, "a", default="7"), indexes=[key])
    last = table(50, "t", column(1, "id"), column(2, "z", default="7"), indexes=[replace(key, name="l")])
    destination.ddl(step(1, ActionType.SET_DEFAULT_VALUE, 200, "…", before=one, after=other))
    destination.ddl(step(2, ActionType.MULTI_SCHEMA_CHANGE, 300, "…", before=other, after=last))
    db.query("INSERT INTO d.t (id) VALUES (2)")
    assert db.query("SELECT z FROM d.t USE INDEX (l) ORDER BY id") == [(99999999999,), (7,)]
