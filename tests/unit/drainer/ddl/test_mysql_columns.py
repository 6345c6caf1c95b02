"""Columns as MySQL and MariaDB define them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.column import ColumnInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ddl.dialect import Dialect
from drainer.ddl.mysql_columns import UnsupportedType, column_sql, in_time_zone
from tests.support.ddl_case import INT, MARIADB, MYSQL, STAMP, TEXT, column


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
