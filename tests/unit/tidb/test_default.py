"""The value of a column a row does not carry (D-TR-03)."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Uint
from binlog.tidb.flatten import missing_value, to_text
from binlog.tidb.job import ActionType, JobState
from binlog.tidb.table import PartitionType
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp

from tests.unit.tidb.tables import column

NOT_NULL = int(Flag.NOT_NULL)
TEXT = ("utf8mb4", "utf8mb4_bin")


@pytest.mark.parametrize(
    ("kind", "origin", "text"),
    [
        (FieldType(Tp.LONGLONG, 0, 20, 0), "7", "7"),
        (FieldType(Tp.LONGLONG, 0, 20, 0), 7, "7"),
        (FieldType(Tp.LONG, 0, 11, 0), True, "1"),
        (FieldType(Tp.DOUBLE), "1.5", "1.5"),
        (FieldType(Tp.NEWDECIMAL, 0, 10, 2), "0", "0.00"),
        (FieldType(Tp.NEWDECIMAL, 0, 10, 2), "1.005", "1.01"),
        (FieldType(Tp.VARCHAR, 0, 10, 0, *TEXT), "é", "é"),
        (FieldType(Tp.STRING, 0, 4, 0), "ab", b"ab\x00\x00"),
        (FieldType(Tp.TIMESTAMP, 0, 19, 0), "2020-01-01 00:00:00", "2020-01-01 00:00:00"),
        (FieldType(Tp.DATETIME, 0, 26, 6), "2020-01-01 00:00:00.123456", "2020-01-01 00:00:00.123456"),
        (FieldType(Tp.DATE), "2020-01-01", "2020-01-01"),
        (FieldType(Tp.DURATION, 0, 10, 0), "12:00:00", "12:00:00"),
        (FieldType(Tp.YEAR), "2024", "2024"),
        (FieldType(Tp.ENUM, 0, 1, 0, *TEXT, ("a", "b")), "b", "b"),
        (FieldType(Tp.SET, 0, 1, 0, *TEXT, ("a", "b", "c")), "a,c", "a,c"),
        (FieldType(Tp.JSON), '{"a": 1}', '{"a": 1}'),
    ],
)
def test_missing_column_has_value_of_its_origin_default(kind: FieldType, origin, text: object) -> None:  # type: ignore[no-untyped-def]
    for flag in (kind.flag, kind.flag | NOT_NULL):
        found = missing_value(column(1, "c", dataclasses.replace(kind, flag=flag), origin_default=origin))
        assert to_text(found, kind) == text


def test_missing_bit_column_has_value_of_origin_default_bytes() -> None:
    kind = FieldType(Tp.BIT, 0, 12, 0)
    corrupted = column(1, "c", kind, origin_default="\n\x01", origin_default_bit=b"\x0a\x01")
    assert missing_value(corrupted) == Uint(0x0A01)
    assert missing_value(column(1, "c", kind, origin_default="\x05")) == Uint(5)


def test_missing_nullable_column_without_origin_default_is_null() -> None:
    assert missing_value(column(1, "c", FieldType(Tp.LONG), default="7")) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FieldType(Tp.LONG, NOT_NULL), "0"),
        (FieldType(Tp.LONG, NOT_NULL | Flag.UNSIGNED), "0"),
        (FieldType(Tp.YEAR, NOT_NULL), "0000"),
        (FieldType(Tp.FLOAT, NOT_NULL), "0"),
        (FieldType(Tp.DOUBLE, NOT_NULL), "0"),
        (FieldType(Tp.NEWDECIMAL, NOT_NULL, 10, 3), "0.000"),
        (FieldType(Tp.VARCHAR, NOT_NULL, 5, 0, *TEXT), ""),
        (FieldType(Tp.STRING, NOT_NULL, 5, 0, *TEXT), ""),
        (FieldType(Tp.STRING, NOT_NULL, 3, 0), b"\x00\x00\x00"),
        (FieldType(Tp.VARCHAR, NOT_NULL, 3, 0), b""),
        (FieldType(Tp.BLOB, NOT_NULL, -1, 0), b""),
        (FieldType(Tp.DURATION, NOT_NULL, 10, 0), "00:00:00"),
        (FieldType(Tp.DATE, NOT_NULL), "0000-00-00"),
        (FieldType(Tp.DATETIME, NOT_NULL, 22, 2), "0000-00-00 00:00:00.00"),
        (FieldType(Tp.TIMESTAMP, NOT_NULL, 19, 0), "0000-00-00 00:00:00"),
        (FieldType(Tp.BIT, NOT_NULL, 8), b"\x00"),
        (FieldType(Tp.SET, NOT_NULL, 1, 0, *TEXT, ("a",)), ""),
        (FieldType(Tp.ENUM, NOT_NULL, 1, 0, *TEXT, ("a", "b")), "a"),
        (FieldType(Tp.ENUM, NOT_NULL), ""),
        (FieldType(Tp.JSON, NOT_NULL), "null"),
    ],
)
def test_missing_not_null_column_without_origin_default_has_zero_value_of_its_type(
    kind: FieldType, text: object
) -> None:
    found = missing_value(column(1, "c", kind))
    assert to_text(found, kind) == text
    unsigned = kind.tp not in (Tp.YEAR, Tp.DURATION) and (kind.is_unsigned or kind.tp in (Tp.BIT, Tp.DATE, Tp.ENUM))
    assert not isinstance(found, int) or isinstance(found, Uint) == unsigned or kind.tp in (
        Tp.SET, Tp.DATETIME, Tp.TIMESTAMP
    )  # fmt: skip


def test_invalid_origin_default_raises_decode_error_with_column_name() -> None:
    """CURRENT_TIMESTAMP never is an origin default; text that is no value names its column."""
    for origin in ("CURRENT_TIMESTAMP", [1], "2020-99-99"):
        with pytest.raises(DecodeError, match="column c: bad origin default"):
            missing_value(column(1, "c", FieldType(Tp.TIMESTAMP), origin_default=origin))


# Type numbers, names and flags.


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
