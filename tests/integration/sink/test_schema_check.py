"""Definitions at a MariaDB compared with those that TableInfos ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from binlog.tidb.document import Json
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ranges.load import creation
from drainer.schema.view import TableVersions
from drainer.sink.mysql.connection import ServerSession, connect
from drainer.sink.mysql.snapshot import server_differences
from drainer.sink.snapshot import SchemaDifference
from tests.integration.sink.case import opened, server_config
from tests.support.ddl_case import INT, STAMP, TEXT, column, foreign_key, key, ranges, table
from tests.support.servers import MariaDB
from tests.support.typed_columns import typed_table

pytestmark = pytest.mark.integration
TYPED = typed_table(name="typed").info
BYTES = FieldType(Tp.STRING, Flag.BINARY, 4)
CHECK: Json = {"id": 1, "constraint_name": {"O": "c"}, "expr_string": "`n` > 0", "state": 5}
COLUMNS = (
    column(1, "id", INT, Flag.NOT_NULL | Flag.PRI_KEY | Flag.AUTO_INCREMENT),
    column(2, "a", INT, Flag.NOT_NULL, default="7", comment="an 'a'\\"),
    column(3, "name", TEXT, default="NULL"),
    column(4, "latin", replace(TEXT, charset="latin1", collate="latin1_bin"), Flag.NOT_NULL, default=""),
    column(5, "stamp", STAMP, Flag.NOT_NULL | Flag.ON_UPDATE_NOW, default="CURRENT_TIMESTAMP"),
    column(6, "since", STAMP, default="2020-01-02 03:04:05"),
    column(7, "bytes", BYTES, default_bit=b"\xff\x00'"),
    column(8, "bits", FieldType(Tp.BIT, 0, 9), default_bit=b"\x01\x02"),
    column(9, "wide", replace(INT, flen=5), Flag.UNSIGNED | Flag.ZEROFILL),
    column(10, "twice`", INT, generated_expr="`a` * 2", generated_stored=True),
    column(11, "once", INT, generated_expr="`a` + 1"),
    column(12, "today", FieldType(Tp.DATE), default="0000-00-00"),
    column(13, "price", FieldType(Tp.NEWDECIMAL, 0, 10, 2), default="1.50"),
    column(14, "text", replace(TEXT, tp=Tp.BLOB, flen=-1)),
)
KEYS = (
    key("u", 1, 2, unique=True),
    key("prefix", 13, length=4, number=2),
    key("many", 2, 3, 9, number=3, comment="of three"),
    key("hidden", 5, number=4, invisible=True),
    key("name", 2, number=5),
)
ALL = replace(table(*COLUMNS, keys=KEYS, pk_is_handle=True, auto_inc_id=5000, comment="all"), name="all")
COMMON = replace(
    table(
        column(1, "a", INT, Flag.NOT_NULL), column(2, "n", TEXT, Flag.NOT_NULL), column(3, "b"),
        column(4, "uid", replace(TEXT, flen=36), default="uuid()", default_is_expr=True),
        keys=(key("PRIMARY", 1, 0, unique=True, primary=True), key("u", 2, unique=True, number=2)),
    ),
    id=11, name="common", is_common_handle=True, rest={"fk_info": [foreign_key(1, "fk_1")], "constraint_info": [CHECK]},
)  # fmt: skip
PARTED = replace(table(column(1, "a", INT), column(2, "b", INT), parts=ranges((1, "p0", "5"))), id=12, name="parted")
BAG = replace(table(column(1, "a", INT), column(2, "b", TEXT)), id=13, name="bag")
# A generated primary key, which MariaDB does not support.
MADE = replace(
    table(column(1, "a", INT), column(2, "g", INT, Flag.NOT_NULL, generated_expr="`a` + 1", generated_stored=True),
          keys=(key("PRIMARY", 1, unique=True, primary=True),)),
    id=14, name="made",
)  # fmt: skip
INFOS = (TYPED, ALL, COMMON, PARTED, BAG, MADE)


def versions(info: TableInfo) -> TableVersions:
    return TableVersions("d", 1, (1,), (info,))


@pytest.fixture
def created(db: MariaDB) -> MariaDB:
    create(db)
    return db


def create(db: MariaDB) -> None:
    """All tables, as the drainer creates them."""
    sink = opened(db)
    for number, info in enumerate(INFOS):
        sink.ddl(creation(100 + number, versions(info), 100), may_exist=True)
    sink.close(clean=True)


@contextlib.contextmanager
def session_of(db: MariaDB) -> Iterator[ServerSession]:
    with contextlib.closing(connect(server_config(db), idle_s=60, read_timeout_s=60)) as session:
        yield session


def differences(db: MariaDB, *infos: TableInfo) -> list[SchemaDifference]:
    with session_of(db) as session:
        return list(server_differences(session, [versions(info) for info in infos or INFOS]))


def mend(db: MariaDB, found: list[SchemaDifference]) -> None:
    with session_of(db) as session:
        for text in (text for one in found for text in one.statement.split("; ")):
            session.execute(text.encode())


def test_created_tables_do_not_differ(created: MariaDB) -> None:
    assert differences(created) == []
    assert len(created.query("SHOW TABLES IN d")) == len(INFOS)


# What somebody did to a table → the differences.
TAMPERED = {
    "ALTER TABLE d.all DROP COLUMN price": ["column price: not there, decimal(10,2) DEFAULT '1.50' wanted"],
    "ALTER TABLE d.all MODIFY a BIGINT NOT NULL DEFAULT 7, ADD z INT, ADD UNIQUE zed (a, z)": [
        "index zed: UNIQUE (a, z) there, not wanted",
        "column a: bigint NOT NULL DEFAULT '7' there, int NOT NULL DEFAULT '7' COMMENT \"an 'a'\\\\\" wanted",
        "column z: int there, not wanted",
    ],
    "ALTER TABLE d.all MODIFY name VARCHAR(9) COLLATE utf8mb4_general_ci NULL": [
        "column name: varchar(9) COLLATE utf8mb4_general_ci there, varchar(9) COLLATE utf8mb4_bin DEFAULT 'NULL' wanted"
    ],
    "ALTER TABLE d.all MODIFY `twice``` INT AS (a * 3) STORED, MODIFY stamp TIMESTAMP NULL": [
        "column stamp: timestamp there, timestamp NOT NULL DEFAULT 'current_timestamp()' on update current_timestamp() "
        "wanted",
        "column twice`: int STORED GENERATED (`a` * 3) there, int STORED GENERATED (`a` * 2) wanted",
    ],
    "ALTER TABLE d.all MODIFY id INT NOT NULL, DROP PRIMARY KEY": [
        "column id: int NOT NULL there, int NOT NULL auto_increment wanted",
        "index primary: not there, UNIQUE (id) wanted",
    ],
    "ALTER TABLE d.all DROP KEY u, ADD UNIQUE u (a), DROP KEY prefix, ADD KEY prefix (text(3)), DROP KEY many": [
        "index u: UNIQUE (a) there, UNIQUE (a, name) wanted",
        "index prefix: KEY (text(3)) there, KEY (text(4)) wanted",
        "index many: not there, KEY (name, latin, twice`) wanted",
    ],
    "ALTER TABLE d.made DROP KEY pk_generated": ["index pk_generated: not there, UNIQUE (g) wanted"],
    "ALTER TABLE d.bag CONVERT TO CHARACTER SET latin1": [
        "column b: varchar(9) COLLATE latin1_swedish_ci there, varchar(9) COLLATE utf8mb4_bin wanted"
    ],
    "DROP TABLE d.common, d.parted": ["no such table", "no such table"],
    "DROP DATABASE d": ["no such table"] * len(INFOS),
}
HARMLESS = (
    "ALTER TABLE d.bag MODIFY a INT(3) AFTER b, ADD KEY (b), ENGINE=Aria, COMMENT='x', DEFAULT CHARSET latin1",
    "ALTER TABLE d.bag ADD my_row_id BIGINT UNSIGNED AUTO_INCREMENT INVISIBLE PRIMARY KEY",
    "ALTER TABLE d.all ALTER INDEX hidden NOT IGNORED, AUTO_INCREMENT=7000",
    "ALTER TABLE d.common DROP FOREIGN KEY fk_1_11, DROP CONSTRAINT c, ALTER uid SET DEFAULT 7",
    "ALTER TABLE d.parted REMOVE PARTITIONING",
)


@pytest.mark.parametrize("statement", TAMPERED)
def test_difference_is_named_and_mended(created: MariaDB, statement: str) -> None:
    created.query(statement)
    found = differences(created)
    assert [one.what for one in found] == TAMPERED[statement]
    mend(created, found)
    mend(created, again := differences(created))
    assert all("AUTO_INCREMENT" in one.statement for one in again)
    assert differences(created) == []


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_no_row_depends_on_is_no_difference(created: MariaDB, statement: str) -> None:
    created.query(statement)
    assert differences(created) == []


def test_table_that_the_user_may_not_compare_is_named(created: MariaDB) -> None:
    created.query("CREATE OR REPLACE USER reader@'%' IDENTIFIED BY 'r'")
    created.query("GRANT SELECT ON d.* TO reader@'%'")
    (one,) = differences(replace(created, user="reader", password="r"), BAG)
    assert one.table == "d.bag" and "CREATE TEMPORARY TABLES" in one.what and "1044" in one.what
    created.query("DROP USER reader@'%'")
