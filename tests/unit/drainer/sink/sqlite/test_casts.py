"""MODIFY COLUMN on stored SQLite values."""

from __future__ import annotations

import pytest
from binlog.tidb.types import FieldType, Tp

from drainer.sink.sqlite.casts import CannotConvert, Value, converter

INT = FieldType(Tp.LONG)
TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
BYTES = FieldType(Tp.BLOB)
DOUBLE = FieldType(Tp.DOUBLE)
DATE = FieldType(Tp.DATE)
TIME = FieldType(Tp.DURATION, decimal=0)
JSON = FieldType(Tp.JSON)
ENUM = FieldType(Tp.ENUM, elems=("a", "b"))


def decimal(scale: int) -> FieldType:
    return FieldType(Tp.NEWDECIMAL, flen=20, decimal=scale)


def stamp(fsp: int) -> FieldType:
    return FieldType(Tp.DATETIME, decimal=fsp)


@pytest.mark.parametrize(
    ("old", "new", "value", "wanted"),
    [
        (INT, TEXT, 5, "5"),
        (TEXT, INT, " 5.5 ", 6),
        (TEXT, INT, "-5.5", -6),
        (DOUBLE, TEXT, 2.0, "2"),
        (DOUBLE, TEXT, 0.1, "0.1"),
        (decimal(2), decimal(1), "1.25", "1.3"),
        (decimal(0), decimal(3), "7", "7.000"),
        (decimal(0), decimal(2), "9" * 40, "9" * 40 + ".00"),
        (INT, decimal(2), 7, "7.00"),
        (decimal(2), INT, "18446744073709551615.00", "18446744073709551615"),
        (INT, DOUBLE, 3, 3.0),
        (TEXT, BYTES, "é", "é".encode()),
        (BYTES, TEXT, b"ab", "ab"),
        (DATE, stamp(3), "2020-01-02", "2020-01-02 00:00:00.000"),
        (stamp(3), stamp(0), "2020-12-31 23:59:59.500", "2021-01-01 00:00:00"),
        (stamp(0), stamp(6), "2020-01-01 01:02:03", "2020-01-01 01:02:03.000000"),
        (stamp(0), DATE, "2020-01-01 01:02:03", "2020-01-01"),
        (INT, TEXT, None, None),
    ],
)
def test_modify_column_converts_values_as_upstream_did(
    old: FieldType, new: FieldType, value: Value, wanted: Value
) -> None:
    convert = converter(old, new)
    assert convert is not None
    assert convert(value) == wanted


@pytest.mark.parametrize(("old", "new"), [(INT, FieldType(Tp.LONGLONG)), (TEXT, ENUM), (ENUM, TEXT), (DATE, TEXT),
                                          (decimal(2), TEXT), (decimal(2),) * 2, (JSON, TEXT), (DATE, DATE)],
                         )  # fmt: skip
def test_modify_column_between_equal_storage_needs_no_conversion(old: FieldType, new: FieldType) -> None:
    assert converter(old, new) is None


@pytest.mark.parametrize(("old", "new"), [(INT, DATE), (JSON, INT), (TIME, stamp(0))])
def test_modify_column_between_unsupported_types_is_refused(old: FieldType, new: FieldType) -> None:
    with pytest.raises(CannotConvert):
        converter(old, new)
