"""CREATE TABLE and ALTER TABLE from TableInfos. What a server makes of them: tests/golden/test_ddl.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, IndexInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ddl.mysql_columns import Dialect, UnsupportedType, column_sql, in_time_zone
from drainer.ddl.mysql_tables import create_table, foreign_key_statements
from tests.support.ddl_case import (
    INT,
    MARIADB,
    MYSQL,
    STAMP,
    TEXT,
    altered,
    column,
    foreign_key,
    key,
    ranges,
    table,
)  # fmt: skip

A, B, C = column(1, "a"), column(2, "b", TEXT), column(3, "c")
HIDDEN = column(4, "_V$_i_0", INT, hidden=True, generated_expr="`a` + 1")
CHECK = {"id": 1, "constraint_name": {"O": "ck", "L": "ck"}, "expr_string": "`a` > 0", "enforced": True, "state": 5}
UTF8 = " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def test_create_table_has_keys_and_table_options() -> None:
    counted = column(1, "a", INT, Flag.AUTO_INCREMENT | Flag.NOT_NULL)
    keys = (key("u", 1, unique=True, length=3), key("i", 2), key("k", 0, comment="x'", invisible=True))
    info = table(counted, B, HIDDEN, keys=keys, auto_inc_id=100, comment="it's")
    text = (
        "CREATE TABLE `d`.`t` (`a` INT NOT NULL AUTO_INCREMENT, "
        "`b` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, UNIQUE KEY `u` (`b`(3)), %sKEY `k` (`a`)%s"
        f" COMMENT 'x''') {UTF8.strip()} AUTO_INCREMENT = 100 COMMENT = 'it''s'"
    )
    assert create_table("d", info, MYSQL) == text % ("KEY `i` ((`a` + 1)), ", " INVISIBLE")
    assert create_table("d", info, MARIADB) == text % ("", " IGNORED")
    assert create_table("d", info, MYSQL.only_rows()) == text % ("", "")


def test_auto_increment_without_key_is_left_out() -> None:
    """TiDB counts a column without one; a server refuses that, and rows carry their values."""
    counted = column(1, "a", INT, Flag.AUTO_INCREMENT | Flag.NOT_NULL)
    assert create_table("d", table(counted, auto_inc_id=7), MYSQL) == f"CREATE TABLE `d`.`t` (`a` INT NOT NULL){UTF8}"
    assert altered(table(counted), table(counted, keys=(key("k", 0),))) == [
        "CHANGE COLUMN `a` `a` INT NOT NULL AUTO_INCREMENT, ADD KEY `k` (`a`)"
    ]


def test_primary_key_on_generated_column_is_unique_key_in_mariadb() -> None:
    """MariaDB has none: a unique key stands for it, and goes with it."""
    generated = column(1, "a", INT, Flag.NOT_NULL, generated_expr="`b`", generated_stored=True)
    with_key = table(generated, B, keys=(key("PRIMARY", 0, primary=True, unique=True),))
    assert "PRIMARY KEY (`a`)" in create_table("d", with_key, MYSQL)
    assert "UNIQUE KEY `pk_generated` (`a`)" in create_table("d", with_key, MARIADB)
    assert altered(with_key, table(generated, B), dialect=MARIADB) == ["DROP INDEX IF EXISTS `pk_generated`"]


def test_alter_table_adds_drops_and_moves_columns() -> None:
    assert altered(table(A, B), table(C, A, B)) == ["ADD COLUMN `c` INT FIRST"]
    assert altered(table(A, B, C), table(A, C)) == ["DROP COLUMN `b`"]
    assert altered(table(A, B, C), table(C, A, B)) == ["CHANGE COLUMN `c` `c` INT FIRST"]
    assert altered(table(A, B), table(A, B, C)) == ["ADD COLUMN `c` INT"]
    assert altered(table(A, C), table(A, B, C)) == [
        "ADD COLUMN `b` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin AFTER `a`"
    ]
    other = column(9, "y", FieldType(Tp.LONGLONG))
    query = "ALTER TABLE t CHANGE a y BIGINT"
    assert altered(table(A), table(other), query=query) == ["CHANGE COLUMN `a` `y` BIGINT"]


def test_alter_table_leaves_out_unchanged_parts_of_column() -> None:
    """A destination whose column is wider or has another collation keeps that through a new name or default."""
    assert altered(table(A), table(replace(A, name="z"))) == ["RENAME COLUMN `a` TO `z`"]
    assert altered(table(A), table(replace(A, default="5"))) == ["ALTER COLUMN `a` SET DEFAULT '5'"]
    assert altered(table(replace(A, default="5")), table(A)) == ["ALTER COLUMN `a` SET DEFAULT NULL"]
    no_default = column(1, "a", INT, Flag.NO_DEFAULT_VALUE)
    assert altered(table(A), table(no_default)) == ["ALTER COLUMN `a` DROP DEFAULT"]
    assert altered(table(replace(A, default="5")), table(no_default)) == ["ALTER COLUMN `a` DROP DEFAULT"]
    now = column(1, "a", STAMP, default="CURRENT_TIMESTAMP")
    assert altered(table(replace(now, default=None)), table(now)) == [
        "CHANGE COLUMN `a` `a` TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP"
    ]
    assert altered(table(A), table(replace(A, name="z")), dialect=MYSQL.only_rows()) == ["CHANGE COLUMN `a` `z` INT"]
    assert altered(table(A), table(replace(A, comment="n"))) == ["CHANGE COLUMN `a` `a` INT COMMENT 'n'"]


def test_alter_table_adds_and_drops_keys() -> None:
    """An index goes with the last of its columns."""
    primary = key("PRIMARY", 0, primary=True, unique=True)
    before = table(A, B, C, keys=(primary, key("k", 2, number=2)))
    assert altered(before, table(A, B, keys=(key("n", 1, number=3),))) == [
        "DROP PRIMARY KEY, DROP COLUMN `c`, ADD KEY `n` (`b`)"
    ]
    assert altered(before, table(A, keys=(primary,))) == ["DROP COLUMN `b`, DROP COLUMN `c`"]
    one = table(A, B, keys=(key("k", 0),))
    assert altered(one, table(A, B), dialect=MARIADB) == ["DROP INDEX IF EXISTS `k`"]
    assert altered(one, table(A, B, keys=(key("k", 0, 1),))) == ["DROP INDEX `k`, ADD KEY `k` (`a`, `b`)"]
    assert altered(one, table(A, B, keys=(key("k", 0, unique=True),))) == ["DROP INDEX `k`, ADD UNIQUE KEY `k` (`a`)"]


def test_alter_table_renames_index() -> None:
    one, other = table(A, keys=(key("k", 0),)), table(A, keys=(key("z", 0),))
    assert altered(one, other) == ["RENAME INDEX `k` TO `z`"]
    assert altered(one, other, dialect=MYSQL.only_rows()) == ["DROP INDEX `k`, ADD KEY `z` (`a`)"]
    assert altered(one, table(A, keys=(key("K", 0),))) == ["RENAME INDEX `k` TO `K`"]
    assert altered(one, table(A, keys=(key("z", 0, number=2),))) == ["DROP INDEX `k`, ADD KEY `z` (`a`)"]


def test_key_of_renamed_or_retyped_column_needs_no_change() -> None:
    """Under another name, and with another type, for which TiDB gives the column a new id."""
    before = table(A, keys=(key("k", 0),))
    assert altered(before, table(replace(A, name="z"), keys=(key("k", 0),))) == ["RENAME COLUMN `a` TO `z`"]
    wide = column(9, "a", FieldType(Tp.LONGLONG))
    assert altered(before, table(wide, keys=(key("k", 0, number=5),))) == ["CHANGE COLUMN `a` `a` BIGINT"]


def test_alter_table_changes_index_visibility() -> None:
    shown, hidden = table(A, keys=(key("k", 0),)), table(A, keys=(key("k", 0, invisible=True),))
    assert altered(shown, hidden) == ["ALTER INDEX `k` INVISIBLE"]
    assert altered(hidden, shown, dialect=MARIADB) == ["ALTER INDEX `k` NOT IGNORED"]
    assert altered(shown, hidden, dialect=MYSQL.only_rows()) == []


@pytest.mark.parametrize(("dialect", "said"), [(MYSQL, ["ADD KEY `i` ((`a` + 1))"]), (MARIADB, [])])
def test_expression_index_is_added_for_mysql_and_left_out_for_mariadb(dialect: object, said: list[str]) -> None:
    """Rows do not depend on them; MariaDB cannot have them, and is told neither of their coming nor of their going."""
    with_index = table(A, HIDDEN, keys=(key("i", 1),))
    assert altered(table(A), with_index, dialect=dialect) == said  # type: ignore[arg-type]
    gone = ["DROP INDEX `i`"] if said else []
    assert altered(with_index, table(A), dialect=dialect) == gone  # type: ignore[arg-type]
    renamed = table(A, HIDDEN, keys=(key("j", 1),))
    assert altered(with_index, renamed, dialect=dialect) == ([] if not said else ["RENAME INDEX `i` TO `j`"])  # type: ignore[arg-type]


def with_rest(**rest: object) -> TableInfo:
    return table(A, rest=rest)


def test_foreign_key_with_generated_name_gets_unique_name() -> None:
    """A name that TiDB made up is another table's too; a server knows a name once in a database."""
    own = with_rest(fk_info=[foreign_key(1, "own", on_delete=2, on_update=3)])
    made_up = with_rest(fk_info=[foreign_key(2, "fk_1")])
    said = "CONSTRAINT `own` FOREIGN KEY (`a`) REFERENCES `d`.`p` (`id`) ON DELETE CASCADE ON UPDATE SET NULL"
    theirs = "CONSTRAINT `fk_1_10` FOREIGN KEY (`a`) REFERENCES `d`.`p` (`id`)"
    assert said in create_table("d", own, MYSQL)
    assert "FOREIGN" not in create_table("d", own, MYSQL.only_rows())
    assert foreign_key_statements("d", made_up) == [f"ALTER TABLE `d`.`t` ADD {theirs}"]
    assert altered(own, made_up) == [f"DROP FOREIGN KEY `own`, ADD {theirs}"]
    assert altered(made_up, table(A)) == ["DROP FOREIGN KEY `fk_1_10`"]
    assert altered(made_up, table(A), dialect=MARIADB) == [
        "DROP FOREIGN KEY IF EXISTS `fk_1`, DROP FOREIGN KEY IF EXISTS `fk_1_10`"
    ]
    assert altered(own, table(A), dialect=MYSQL.only_rows()) == []
    parent_renamed = with_rest(fk_info=[foreign_key(1, "own", on_delete=2, on_update=3, ref_table={"O": "q"})])
    assert altered(own, parent_renamed) == []
    assert "FOREIGN" not in create_table("d", with_rest(fk_info=[foreign_key(1, "own", state=1)]), MYSQL)


def test_check_constraints_follow_what_upstream_enforces() -> None:
    kept, loose = with_rest(constraint_info=[CHECK]), with_rest(constraint_info=[{**CHECK, "enforced": False}])
    assert "CONSTRAINT `ck` CHECK (`a` > 0)" in create_table("d", kept, MARIADB)
    assert altered(table(A), loose) == ["ADD CONSTRAINT `ck` CHECK (`a` > 0) NOT ENFORCED"]
    assert altered(table(A), loose, dialect=MARIADB) == []
    assert altered(kept, loose) == ["DROP CHECK `ck`, ADD CONSTRAINT `ck` CHECK (`a` > 0) NOT ENFORCED"]
    assert altered(kept, loose, dialect=MARIADB) == ["DROP CONSTRAINT IF EXISTS `ck`"]


def test_alter_table_changes_charset_comment_and_auto_increment() -> None:
    before = table(A, auto_inc_id=1)
    assert altered(before, replace(before, charset="gbk", collate="gbk_bin", comment="c")) == [
        "DEFAULT CHARACTER SET gbk COLLATE gbk_bin, COMMENT = 'c'"
    ]
    counted = table(column(1, "a", INT, Flag.AUTO_INCREMENT), keys=(key("k", 0),))
    assert altered(counted, replace(counted, auto_inc_id=50)) == ["AUTO_INCREMENT = 50"]
    assert altered(before, replace(before, auto_inc_id=50)) == []


def test_ttl_change_gives_no_statement() -> None:
    assert altered(table(A), table(A, rest={"ttl_info": {"column": {"O": "a"}}}), ActionType.ALTER_TTL_INFO) == []


def hashed(count: int, *names: str) -> PartitionInfo:
    definitions = tuple(PartitionDefinition(n, name) for n, name in enumerate(names))
    return PartitionInfo(PartitionType.HASH, "`a`", num=count, definitions=definitions)


P0, P1, P2 = (1, "p0", "10"), (2, "p1", "20"), (3, "p2", "MAXVALUE")
TWO, THREE = table(A, parts=ranges(P0, P1)), table(A, parts=ranges(P0, P1, P2))
PARTITIONS: tuple[tuple[TableInfo, TableInfo, ActionType, list[str]], ...] = (
    (TWO, THREE, ActionType.ADD_TABLE_PARTITION, ["ADD PARTITION (PARTITION `p2` VALUES LESS THAN (MAXVALUE))"]),
    (THREE, TWO, ActionType.DROP_TABLE_PARTITION, ["DROP PARTITION `p2`"]),
    (TWO, table(A, parts=ranges(P0, (9, "p1", "20"))), ActionType.TRUNCATE_TABLE_PARTITION,
     ["TRUNCATE PARTITION `p1`"]),
    (TWO, table(A), ActionType.REMOVE_PARTITIONING, ["REMOVE PARTITIONING"]),
    (THREE, table(A, parts=ranges((8, "x", "20"), P2)), ActionType.REORGANIZE_PARTITION,
     ["REORGANIZE PARTITION `p0`, `p1` INTO (PARTITION `x` VALUES LESS THAN (20))"]),
    (TWO, table(A, parts=ranges(P0, (8, "p1", "20"))), ActionType.REORGANIZE_PARTITION,
     ["REORGANIZE PARTITION `p1` INTO (PARTITION `p1` VALUES LESS THAN (20))"]),
    (table(A, parts=hashed(2)), table(A, parts=hashed(5)), ActionType.REORGANIZE_PARTITION,
     ["ADD PARTITION PARTITIONS 3"]),
    (table(A, parts=hashed(5)), table(A, parts=hashed(4)), ActionType.REORGANIZE_PARTITION, ["COALESCE PARTITION 1"]),
    (table(A), table(A, parts=hashed(4)), ActionType.ALTER_TABLE_PARTITIONING,
     ["PARTITION BY HASH (`a`) PARTITIONS 4"]),
    (table(A), table(A, parts=hashed(2, "p0", "p1")), ActionType.ALTER_TABLE_PARTITIONING,
     ["PARTITION BY HASH (`a`) PARTITIONS 2"]),
    (table(A), table(A, parts=hashed(2, "x", "y")), ActionType.ALTER_TABLE_PARTITIONING,
     ["PARTITION BY HASH (`a`) PARTITIONS 2 (PARTITION `x`, PARTITION `y`)"]),
    (THREE, TWO, ActionType.ALTER_TABLE_PARTITIONING,
     ["PARTITION BY RANGE (`a`) (PARTITION `p0` VALUES LESS THAN (10), PARTITION `p1` VALUES LESS THAN (20))"]),
    (TWO, TWO, ActionType.ADD_COLUMN, []),
)  # fmt: skip


@pytest.mark.parametrize(("before", "after", "kind", "said"), PARTITIONS)
def test_alter_table_changes_partitions(before: TableInfo, after: TableInfo, kind: ActionType, said: list[str]) -> None:
    assert altered(before, after, kind) == said


def test_create_table_with_list_partitions_is_exact() -> None:
    rest = PartitionDefinition(2, "q", in_values=(("3",), ("DEFAULT",)), rest={"comment": "the rest"})
    lists = PartitionInfo(
        PartitionType.LIST, "`a`", definitions=(PartitionDefinition(1, "p", in_values=(("1",),)), rest)
    )
    assert create_table("d", table(A, parts=lists), MYSQL).endswith(
        "PARTITION BY LIST (`a`) (PARTITION `p` VALUES IN (1), PARTITION `q` DEFAULT COMMENT = 'the rest')"
    )
    pairs = PartitionInfo(
        PartitionType.LIST, columns=("a", "c"), definitions=(PartitionDefinition(1, "p", in_values=(("1", "2"),)),)
    )
    assert create_table("d", table(A, C, parts=pairs), MYSQL).endswith(
        "PARTITION BY LIST COLUMNS (`a`, `c`) (PARTITION `p` VALUES IN ((1, 2)))"
    )


def test_index_that_is_not_public_is_left_out() -> None:
    from binlog.tidb.types import SchemaState

    coming: IndexInfo = replace(key("k", 0), state=SchemaState.WRITE_ONLY)
    assert altered(table(A), table(A, keys=(coming,))) == []


# Columns as MySQL and MariaDB define them.


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (column(1, "a", INT, Flag.NOT_NULL | Flag.UNSIGNED, default=5), "`a` INT UNSIGNED NOT NULL DEFAULT '5'"),
        (column(1, "a", replace(INT, flen=5), Flag.ZEROFILL | Flag.UNSIGNED), "`a` INT(5) UNSIGNED ZEROFILL"),
        (column(1, "a", FieldType(Tp.TINY, flen=1)), "`a` TINYINT(1)"),
        (column(1, "a`", TEXT, default="q'\\", comment="x'"),
         "`a``` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT 'q''\\\\' COMMENT 'x'''"),
        (column(1, "a", FieldType(Tp.BIT, flen=12), default="x", default_bit=b"\x0a\x01"),
         "`a` BIT(12) DEFAULT x'0a01'"),
        (column(1, "a", FieldType(Tp.TIMESTAMP, decimal=3), Flag.ON_UPDATE_NOW, default="CURRENT_TIMESTAMP(3)"),
         "`a` TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)"),
        (column(1, "a", INT, default="nextval(`d`.`s`)", default_is_expr=True), "`a` INT DEFAULT (nextval(`d`.`s`))"),
        (column(1, "a", INT, Flag.NOT_NULL, generated_expr="`b` + 1", generated_stored=True),
         "`a` INT GENERATED ALWAYS AS (`b` + 1) STORED NOT NULL"),
        (column(1, "a", FieldType(Tp.ENUM, elems=("x", "y'"), charset="utf8mb4", collate="utf8mb4_bin")),
         "`a` ENUM('x','y''') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        (column(1, "a", FieldType(Tp.DOUBLE, flen=22)), "`a` DOUBLE"),
        (column(1, "a", FieldType(Tp.FLOAT, flen=7, decimal=2)), "`a` FLOAT(7,2)"),
        (column(1, "a", FieldType(Tp.STRING, flen=4), default="b\0\0\0"), "`a` BINARY(4) DEFAULT x'62000000'"),
        (column(1, "a", FieldType(Tp.VARCHAR, flen=4), default="?", default_bit=b"\xff\xfe"),
         "`a` VARBINARY(4) DEFAULT x'fffe'"),
        (column(1, "a", FieldType(Tp.VARCHAR, flen=4), default=""), "`a` VARBINARY(4) DEFAULT ''"),
        (column(1, "a", FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)), "`a` DECIMAL(10,2)"),
        (column(1, "a", INT, Flag.AUTO_INCREMENT | Flag.NOT_NULL), "`a` INT NOT NULL AUTO_INCREMENT"),
    ],
)  # fmt: skip
def test_column_definition_of_each_type_is_exact_sql(one: ColumnInfo, words: str) -> None:
    assert column_sql(one, MYSQL) == words


def test_column_type_unknown_to_mysql_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="VECTOR"):
        column_sql(column(1, "a", FieldType(Tp.VECTOR, flen=3)), MYSQL)


def test_generated_column_for_mariadb_leaves_out_not_null() -> None:
    generated = column(1, "a", INT, Flag.NOT_NULL, generated_expr="`b` + 1")
    assert column_sql(generated, MARIADB) == "`a` INT GENERATED ALWAYS AS (`b` + 1) VIRTUAL"


def test_column_for_rows_only_leaves_out_expression_default() -> None:
    """Rows carry every value; what the server does with a sequence or a function is nobody's concern."""
    one = column(1, "a", INT, default="nextval(`d`.`s`)", default_is_expr=True)
    assert column_sql(one, MYSQL.only_rows()) == "`a` INT"


def test_collation_unknown_to_server_is_replaced_by_nearest() -> None:
    new = replace(TEXT, collate="utf8mb4_0900_ai_ci")
    known = Dialect(frozenset({"utf8mb4_bin", "utf8mb4_unicode_520_ci"}))
    assert column_sql(column(1, "a", new), known).endswith("COLLATE utf8mb4_unicode_520_ci")
    klingon = replace(TEXT, collate="utf8mb4_klingon_ci")
    assert column_sql(column(1, "a", klingon), known).endswith("COLLATE utf8mb4_klingon_ci")


@pytest.mark.parametrize(
    ("zone", "there"),
    [
        ("+05:30", "2020-07-01 05:30:00.5"),
        ("-03:00", "2020-06-30 21:00:00.5"),
        ("Europe/Berlin", "2020-07-01 02:00:00.5"),
    ],
)
def test_timestamp_default_is_converted_to_session_time_zone(zone: str, there: str) -> None:
    """TiDB keeps the default of a TIMESTAMP in UTC; what a statement says is read in the session's time zone."""
    one = column(1, "a", replace(STAMP, decimal=1), default="2020-07-01 00:00:00.5")
    assert f"DEFAULT '{there}'" in column_sql(one, replace(MYSQL, time_zone=zone))
    assert "DEFAULT '2020-07-01 00:00:00.5'" in column_sql(one, MYSQL)
    moment = column(1, "a", FieldType(Tp.DATETIME, decimal=1), default="2020-07-01 00:00:00.5")
    assert "DEFAULT '2020-07-01 00:00:00.5'" in column_sql(moment, replace(MYSQL, time_zone=zone))


def test_zero_timestamp_default_is_not_converted() -> None:
    one = column(1, "a", STAMP, default="0000-00-00 00:00:00")
    assert "DEFAULT '0000-00-00 00:00:00'" in column_sql(one, replace(MYSQL, time_zone="+05:30"))


def test_unknown_session_time_zone_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="Mars/Olympus"):
        in_time_zone("2020-07-01 00:00:00", "Mars/Olympus")
