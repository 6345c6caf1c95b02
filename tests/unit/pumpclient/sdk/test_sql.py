"""DDL text where no recording has the case."""

from __future__ import annotations

import pytest

from pumpclient.sdk import sql
from pumpclient.sdk import types as t
from pumpclient.sdk.errors import BadDeclaration, ValueRejected
from pumpclient.sdk.table import NOW, Column, Index, Table


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column("c", t.VarChar(20), default='it\'s \\ "q"'), "`c` VARCHAR(20) DEFAULT _UTF8MB4'it''s \\\\ \"q\"'"),
        (Column("c", t.Bit(4), default=10), "`c` BIT(4) DEFAULT b'1010'"),
        (Column("c", t.Double(), default=-1.5), "`c` DOUBLE DEFAULT -1.5"),
        (Column("c", t.NumericType(10, 3), default="3.14"), "`c` DECIMAL(10,3) DEFAULT 3.140"),
        (Column("c", t.Date(), default="2020-02-02"), "`c` DATE DEFAULT _UTF8MB4'2020-02-02'"),
        (Column("c", t.Binary(4), default=b"ab"), "`c` BINARY(4) DEFAULT _UTF8MB4'ab'"),
        (Column("c", t.VarBinary(4), default=b"\xff"), "`c` VARBINARY(4) DEFAULT x'ff'"),
        (Column("c", t.Enum("x", "y"), default="y"), "`c` ENUM('x','y') DEFAULT _UTF8MB4'y'"),
        (
            Column("c", t.Set("p", "q"), nullable=False, default="p,q"),
            "`c` SET('p','q') NOT NULL DEFAULT _UTF8MB4'p,q'",
        ),
        (Column("c", t.Timestamp(), default=NOW), "`c` TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP()"),
        (Column("c", t.DateTime(6), default=NOW), "`c` DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)"),
        (Column("c", t.Int(), default=None), "`c` INT"),
        (Column("c", t.Bool(), default=True), "`c` TINYINT(1) DEFAULT 1"),
        (Column("c`d", t.Int(unsigned=True), comment="it's"), "`c``d` INT UNSIGNED COMMENT 'it''s'"),
        (Column("c", t.Char(3, collate="ascii_bin")), "`c` CHAR(3) CHARACTER SET ASCII"),
        (
            Column("c", t.MediumText(collate="utf8_general_ci")),
            "`c` MEDIUMTEXT CHARACTER SET UTF8 COLLATE utf8_general_ci",
        ),
        (Column("c", t.LongBlob()), "`c` LONGBLOB"),
        (Column("c", t.Year(), default=2020), "`c` YEAR DEFAULT 2020"),
        (Column("c", t.Time(2), default="-12:34:56.78"), "`c` TIME(2) DEFAULT _UTF8MB4'-12:34:56.78'"),
    ],
)
def test_column_sql_equals_text_of_tidb(column: Column, text: str) -> None:
    assert sql.column_sql("t", column) == text


def test_ddl_statement_texts_quote_names_and_options() -> None:
    assert sql.create_database("a`b", "utf8mb4_bin") == "CREATE DATABASE `a``b`;"
    text = "CREATE DATABASE `d` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_general_ci;"
    assert sql.create_database("d", "utf8mb4_general_ci") == text
    assert sql.rename_table("a", "b", old_schema="s", new_schema="s") == "RENAME TABLE `a` TO `b`;"
    assert sql.rename_table("a", "b", old_schema="s", new_schema="r") == "RENAME TABLE `s`.`a` TO `r`.`b`;"
    key = sql.key_sql(Index.over("u", ["a", ("b", 3)], unique=True))
    assert sql.alter_table("t", ["DROP INDEX `k`", f"ADD {key}"]) == (
        "ALTER TABLE `t` DROP INDEX `k`, ADD UNIQUE `u`(`a`, `b`(3));"
    )


def test_create_table_text_contains_collation_and_comment() -> None:
    table = Table("t", Column("a", t.Int()), collate="utf8mb4_general_ci", comment="a 'b'")
    assert sql.create_table(table) == (
        "CREATE TABLE `t` (`a` INT) DEFAULT CHARACTER SET = UTF8MB4 DEFAULT COLLATE = UTF8MB4_GENERAL_CI "
        "COMMENT = 'a ''b''';"
    )


@pytest.mark.parametrize(
    ("column", "error"),
    [
        (Column("c", t.JSON(), default={}), BadDeclaration),
        (Column("c", t.Text(), default="x"), BadDeclaration),
        (Column("c", t.Date(), default=NOW), BadDeclaration),
        (Column("c", t.TinyInt(), default=300), ValueRejected),
        (Column("c", t.Enum("a"), default="b"), ValueRejected),
    ],
)
def test_create_table_refuses_invalid_default(column: Column, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"t\.c"):
        sql.create_table(Table("t", column))


def test_unnamed_keys_take_the_name_of_their_first_column() -> None:
    table = Table("t", Column("a", t.Int()), Column("b", t.Int()), unique=[["a"], ["a", "b"], ["b"]])
    assert [key.name for key in table.keys] == ["a", "a_2", "b"]
