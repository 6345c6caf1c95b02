"""Type numbers, names and flags."""

from __future__ import annotations

import pickle

import pytest
from binlog.tidb.job import ActionType, JobState
from binlog.tidb.partition import PartitionType
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp


@pytest.mark.parametrize("kind", [Tp, ActionType, JobState, SchemaState, PartitionType])
def test_unknown_enum_number_is_kept_with_generated_name(kind) -> None:  # type: ignore[no-untyped-def]
    member = kind(12_345)
    assert member == 12_345
    assert member.name == "UNKNOWN_12345"
    assert isinstance(member, kind)
    assert pickle.loads(pickle.dumps(member)) == member
    assert {12_345: "found"}[member] == "found"
    with pytest.raises(ValueError):
        kind("text")


@pytest.mark.parametrize(
    ("tp", "charset", "name"),
    [
        (Tp.TINY, "binary", "tinyint"),
        (Tp.INT24, "binary", "mediumint"),
        (Tp.LONG, "binary", "int"),
        (Tp.LONGLONG, "binary", "bigint"),
        (Tp.NEWDECIMAL, "binary", "decimal"),
        (Tp.DURATION, "binary", "time"),
        (Tp.BLOB, "binary", "blob"),
        (Tp.BLOB, "utf8mb4", "text"),
        (Tp.TINY_BLOB, "binary", "tinyblob"),
        (Tp.LONG_BLOB, "gbk", "longtext"),
        (Tp.STRING, "binary", "binary"),
        (Tp.STRING, "utf8", "char"),
        (Tp.VARCHAR, "binary", "varbinary"),
        (Tp.VARCHAR, "utf8", "varchar"),
        (Tp.VAR_STRING, "utf8", "var_string"),
        (Tp.JSON, "binary", "json"),
        (Tp.YEAR, "binary", "year"),
        (Tp.GEOMETRY, "binary", "geometry"),
    ],
)
def test_mysql_name_follows_type_and_charset(tp: Tp, charset: str, name: str) -> None:
    assert FieldType(tp, charset=charset).mysql_name == name


def test_field_type_properties_follow_flags_and_charset() -> None:
    kind = FieldType(Tp.LONGLONG, int(Flag.UNSIGNED | Flag.NOT_NULL), 20, -1)
    assert kind.is_unsigned
    assert kind.is_not_null
    assert not kind.is_string
    assert kind.fsp == 0
    assert FieldType(Tp.DATETIME, decimal=9).fsp == 6
    assert FieldType(Tp.BLOB).is_binary
    assert not FieldType(Tp.BLOB, charset="utf8mb4").is_binary
    assert not FieldType(Tp.LONGLONG).is_binary
