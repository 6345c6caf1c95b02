"""What each protocol says of a value of each column type: tests/cases/protocol/types.txt."""

from __future__ import annotations

import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.protocol.table import basic_type, full_type
from tests.support.type_case import TypeCase, field_type, null_of, read_cases, written

CASES = list(read_cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_column_value_in_each_protocol_is_as_in_types_txt(case: TypeCase) -> None:
    assert written(case) == case


@pytest.mark.parametrize("name", [case.name for case in CASES if "not null" not in case.name])
def test_null_of_each_type_is_null_in_each_protocol(name: str) -> None:
    assert null_of(field_type(name)) == dict.fromkeys(("open", "canal", "debezium", "simple", "avro"), "null")


# Types as TiDB describes them.


UNSIGNED, ZEROFILL = Flag.UNSIGNED, Flag.UNSIGNED | Flag.ZEROFILL


@pytest.mark.parametrize(
    ("kind", "basic", "full"),
    [
        (FieldType(Tp.LONG, 0, 11), "int", "int(11)"),
        (FieldType(Tp.LONG, UNSIGNED, 10), "int unsigned", "int(10) unsigned"),
        (FieldType(Tp.TINY, ZEROFILL, 3), "tinyint unsigned zerofill", "tinyint(3) unsigned zerofill"),
        (FieldType(Tp.LONGLONG), "bigint", "bigint(20)"),
        (FieldType(Tp.INT24, 0, 9), "mediumint", "mediumint(9)"),
        (FieldType(Tp.YEAR, ZEROFILL, 4), "year", "year(4)"),
        (FieldType(Tp.BIT, UNSIGNED, 3), "bit", "bit(3)"),
        (FieldType(Tp.FLOAT, 0, 12, -1), "float", "float"),
        (FieldType(Tp.FLOAT, 0, 10, 3), "float", "float(10,3)"),
        (FieldType(Tp.DOUBLE, UNSIGNED, 22, -1), "double unsigned", "double unsigned"),
        (FieldType(Tp.NEWDECIMAL, 0, 10, 0), "decimal", "decimal(10,0)"),
        (FieldType(Tp.NEWDECIMAL, UNSIGNED, 5, 2), "decimal unsigned", "decimal(5,2) unsigned"),
        (FieldType(Tp.DATE, 0, 10), "date", "date"),
        (FieldType(Tp.DATETIME, 0, 19, 0), "datetime", "datetime"),
        (FieldType(Tp.DATETIME, 0, 23, 3), "datetime", "datetime(3)"),
        (FieldType(Tp.TIMESTAMP, 0, 26, 6), "timestamp", "timestamp(6)"),
        (FieldType(Tp.DURATION, 0, 10, 0), "time", "time"),
        (FieldType(Tp.VARCHAR, 0, 32, charset="utf8mb4"), "varchar", "varchar(32)"),
        (FieldType(Tp.STRING, 0, 1, charset="utf8mb4"), "char", "char(1)"),
        (FieldType(Tp.STRING, 0, 8), "binary", "binary(8)"),
        (FieldType(Tp.VARCHAR, 0, 8), "varbinary", "varbinary(8)"),
        (FieldType(Tp.BLOB, 0, 65535, charset="utf8mb4"), "text", "text"),
        (FieldType(Tp.LONG_BLOB, 0, 4294967295), "longblob", "longblob"),
        (FieldType(Tp.JSON, 0, 4294967295), "json", "json"),
        (FieldType(Tp.ENUM, elems=("a", "b'c", "d\\")), "enum", r"enum('a','b''c','d\\')"),
        (FieldType(Tp.SET, elems=("x", "y")), "set", "set('x','y')"),
    ],
)
def test_basic_and_full_type_text_of_each_type_is_tidbs(kind: FieldType, basic: str, full: str) -> None:
    assert (basic_type(kind), full_type(kind)) == (basic, full)
