"""DDL said anew from the TableInfo before and after. What a server makes of it: tests/golden/test_ddl.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexColumn, IndexInfo
from binlog.tidb.job import ActionType, Job
from binlog.tidb.partition import PartitionDefinition, PartitionInfo, PartitionType
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.schema.define import NoWords, column_words
from drainer.schema.reword import reworded
from drainer.step import Ddl, Located, TableChange

INT = FieldType(Tp.LONG, flen=11)
TEXT = FieldType(Tp.VARCHAR, flen=9, charset="utf8mb4", collate="utf8mb4_bin")


def column(number: int, name: str, kind: FieldType = INT, flag: int = 0, **more: object) -> ColumnInfo:
    return ColumnInfo(id=number, name=name, offset=0, type=replace(kind, flag=flag), **more)  # type: ignore[arg-type]


def table(*columns: ColumnInfo, keys: tuple[IndexInfo, ...] = (), parts: PartitionInfo | None = None) -> TableInfo:
    placed = tuple(replace(c, offset=at) for at, c in enumerate(columns))
    return TableInfo(10, "t", placed, keys, partition=parts)


def key(name: str, *offsets: int, unique: bool = False, primary: bool = False, length: int = -1) -> IndexInfo:
    return IndexInfo(1, name, tuple(IndexColumn("", at, length) for at in offsets), unique=unique, primary=primary)


def ranges(*bounds: tuple[int, str, str]) -> PartitionInfo:
    definitions = tuple(PartitionDefinition(i, name, less_than=(bound,)) for i, name, bound in bounds)
    return PartitionInfo(PartitionType.RANGE, "`a`", definitions=definitions)


def said(
    before: TableInfo | None,
    after: TableInfo | None,
    kind: ActionType = ActionType.MULTI_SCHEMA_CHANGE,
    query: str = "",
) -> tuple[str, ...] | None:
    change = TableChange(*(None if info is None else Located(info.id, "d", info) for info in (before, after)))
    return reworded(Ddl(Job(1, kind), 1, False, "d", "d", (query,), query, 1, (change,)))


A, B, C = column(1, "a"), column(2, "b", TEXT), column(3, "c")


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
        (column(1, "a", FieldType(Tp.STRING, flen=4)), "`a` BINARY(4)"),
        (column(1, "a", FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)), "`a` DECIMAL(10,2)"),
    ],
)  # fmt: skip
def test_columns(one: ColumnInfo, words: str) -> None:
    assert column_words(one) == words


def test_a_type_without_words_is_not_reworded() -> None:
    vector = column(1, "a", FieldType(Tp.VECTOR, flen=3))
    with pytest.raises(NoWords):
        column_words(vector)
    assert said(None, table(vector), ActionType.CREATE_TABLE) is None


def test_a_table_with_its_keys() -> None:
    """Hidden columns and the indexes on them are missing; AUTO_INCREMENT is said where there is a key for it."""
    hidden = column(4, "_V$_i_0", INT, hidden=True, generated_expr="`a` + 1")
    counted = column(1, "a", INT, Flag.AUTO_INCREMENT | Flag.NOT_NULL)
    keys = (key("u", 1, unique=True, length=3), key("i", 2), key("k", 0))
    sql = said(None, table(counted, B, hidden, keys=keys), ActionType.CREATE_TABLE)
    assert sql == (
        "CREATE TABLE `d`.`t` (`a` INT NOT NULL AUTO_INCREMENT, "
        "`b` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, UNIQUE KEY `u` (`b`(3)), KEY `k` (`a`))"
        " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    )
    assert "AUTO_INCREMENT" not in str(said(None, table(counted), ActionType.CREATE_TABLE))


def test_columns_come_go_and_move() -> None:
    assert said(table(A, B), table(C, A, B)) == ("ALTER TABLE `d`.`t` ADD COLUMN `c` INT FIRST",)
    assert said(table(A, B, C), table(A, C)) == ("ALTER TABLE `d`.`t` DROP COLUMN `b`",)
    assert said(table(A, B, C), table(C, A, B)) == ("ALTER TABLE `d`.`t` CHANGE COLUMN `c` `c` INT FIRST",)
    assert said(table(A, B), table(A, B, C)) == ("ALTER TABLE `d`.`t` ADD COLUMN `c` INT",)
    renamed = replace(A, name="z")
    assert said(table(A), table(renamed)) == ("ALTER TABLE `d`.`t` CHANGE COLUMN `a` `z` INT",)
    other = column(9, "y", FieldType(Tp.LONGLONG))
    assert said(table(A), table(other), query="ALTER TABLE t CHANGE a y BIGINT") == (
        "ALTER TABLE `d`.`t` CHANGE COLUMN `a` `y` BIGINT",
    )


def test_keys_come_and_go() -> None:
    """An index goes with the last of its columns; nothing is said of what no row depends on."""
    before = table(A, B, C, keys=(key("PRIMARY", 0, primary=True, unique=True), key("k", 2)))
    assert said(before, table(A, B, keys=(key("n", 1),))) == (
        "ALTER TABLE `d`.`t` DROP PRIMARY KEY, DROP COLUMN `c`, ADD KEY `n` (`b`)",
    )
    assert said(table(A), table(A), ActionType.ALTER_TTL_INFO) == ()


def test_partitions() -> None:
    p0, p1, p2 = (1, "p0", "10"), (2, "p1", "20"), (3, "p2", "MAXVALUE")
    two, three = table(A, parts=ranges(p0, p1)), table(A, parts=ranges(p0, p1, p2))
    assert said(two, three, ActionType.ADD_TABLE_PARTITION) == (
        "ALTER TABLE `d`.`t` ADD PARTITION (PARTITION `p2` VALUES LESS THAN (MAXVALUE))",
    )
    assert said(three, two, ActionType.DROP_TABLE_PARTITION) == ("ALTER TABLE `d`.`t` DROP PARTITION `p2`",)
    emptied = table(A, parts=ranges(p0, (9, "p1", "20")))
    assert said(two, emptied, ActionType.TRUNCATE_TABLE_PARTITION) == ("ALTER TABLE `d`.`t` TRUNCATE PARTITION `p1`",)
    assert said(two, table(A), ActionType.REMOVE_PARTITIONING) == ("ALTER TABLE `d`.`t` REMOVE PARTITIONING",)
    rest = PartitionDefinition(2, "q", in_values=(("3",), ("DEFAULT",)))
    lists = PartitionInfo(
        PartitionType.LIST, "`a`", definitions=(PartitionDefinition(1, "p", in_values=(("1",),)), rest)
    )
    assert said(table(A), table(A, parts=lists), ActionType.ALTER_TABLE_PARTITIONING) == (
        "ALTER TABLE `d`.`t` PARTITION BY LIST (`a`) (PARTITION `p` VALUES IN (1), PARTITION `q` DEFAULT)",
    )
    hashed = [table(A, parts=PartitionInfo(PartitionType.HASH, "`a`", num=n)) for n in (0, 4)]
    assert said(table(A), hashed[1], ActionType.ALTER_TABLE_PARTITIONING) == (
        "ALTER TABLE `d`.`t` PARTITION BY HASH (`a`) PARTITIONS 4",
    )


def test_what_moves_rows_by_itself_is_not_reworded() -> None:
    assert said(table(A), table(A), ActionType.EXCHANGE_TABLE_PARTITION) is None
    assert said(table(A), None, ActionType.DROP_TABLE) is None
