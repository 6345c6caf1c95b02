"""Every TiDB type as a type of Spark, value by value."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal as TiDBDecimal
from binlog.tidb.flatten import flatten
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.row.column_type import ColumnType
from drainer.spark.typed.types import arrow_type, column_converter, spark_type, text_of

UTF8 = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
UNSIGNED = {"flag": int(Flag.UNSIGNED)}


def arrived(value: object, kind: FieldType, *, zero_dates_fail: bool = False) -> object:
    """What a Spark program sees of a value that was written to a column."""
    return of_datum(flatten(value, kind), kind, zero_dates_fail=zero_dates_fail)


def of_datum(datum: Datum, kind: FieldType, *, zero_dates_fail: bool = False) -> object:
    column_type = ColumnType.of(kind)
    decoded = pa.array([None, column_type.decoded_value(datum)], column_type.decoded_type)
    column = column_converter(kind, zero_dates_fail=zero_dates_fail)(decoded)
    column.validate(full=True)
    assert column.type == arrow_type(kind)
    null, value = column.to_pylist()
    assert null is None
    return value


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (FieldType(Tp.TINY), "tinyint", -128),
        (FieldType(Tp.TINY, **UNSIGNED), "smallint", 255),
        (FieldType(Tp.SHORT), "smallint", -32768),
        (FieldType(Tp.SHORT, **UNSIGNED), "int", 65535),
        (FieldType(Tp.INT24), "int", -8388608),
        (FieldType(Tp.INT24, **UNSIGNED), "int", 16777215),
        (FieldType(Tp.LONG), "int", -2147483648),
        (FieldType(Tp.LONG, **UNSIGNED), "bigint", 4294967295),
        (FieldType(Tp.LONGLONG), "bigint", -(1 << 63)),
        (FieldType(Tp.LONGLONG, **UNSIGNED), "decimal(20,0)", Decimal((1 << 64) - 1)),
        (FieldType(Tp.YEAR), "smallint", 2155),
        (FieldType(Tp.BIT, flen=1), "bigint", 1),
        (FieldType(Tp.BIT, flen=63), "bigint", (1 << 63) - 1),
        (FieldType(Tp.BIT, flen=64), "decimal(20,0)", Decimal((1 << 64) - 1)),
        (FieldType(Tp.DOUBLE), "double", 1.1),
        (FieldType(Tp.FLOAT), "float", 0.5),
        (FieldType(Tp.NEWDECIMAL, flen=10, decimal=2), "decimal(10,2)", Decimal("-12345678.90")),
        (FieldType(Tp.NEWDECIMAL, flen=38, decimal=30), "decimal(38,30)", Decimal("1." + "0" * 29 + "1")),
        (FieldType(Tp.NEWDECIMAL, flen=65, decimal=0), "string", "9" * 65),
        (FieldType(Tp.DATE), "date", datetime.date(1, 1, 1)),
        (FieldType(Tp.DATETIME, decimal=6), "timestamp_ntz", datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
        (
            FieldType(Tp.TIMESTAMP, decimal=3),
            "timestamp",
            datetime.datetime(2038, 1, 19, 3, 14, 7, 123000, tzinfo=datetime.UTC),
        ),
        (FieldType(Tp.DURATION, decimal=6), "interval day to second", datetime.timedelta(hours=-838, microseconds=1)),
        (FieldType(Tp.VARCHAR, flen=9, **UTF8), "string", "naïve \U0001f600"),
        (FieldType(Tp.VARCHAR, flen=9), "binary", b"\x00\xff"),
        (FieldType(Tp.BLOB, **UTF8), "string", ""),
        (FieldType(Tp.STRING, flen=2), "binary", b"a\x00"),
        (FieldType(Tp.ENUM, elems=("a", "b"), **UTF8), "string", "b"),
        (FieldType(Tp.SET, elems=("a", "b"), **UTF8), "string", "a,b"),
        (FieldType(Tp.JSON), "string", '{"a": [1, 2.5, null]}'),
        (FieldType(Tp.FLOAT), "float", 3.4028234663852886e38),
        (FieldType(Tp.DATE), "date", datetime.date(2024, 2, 29)),
        (FieldType(Tp.DURATION), "interval day to second", datetime.timedelta(0)),
        (FieldType(Tp.SET, elems=("a", "b"), **UTF8), "string", ""),
    ],
)  # fmt: skip
def test_value_of_each_type_has_its_spark_type(kind: FieldType, name: str, value: object) -> None:
    found = spark_type(kind)
    assert found is not None
    assert found.simpleString() == name
    written: object = value
    if isinstance(value, datetime.datetime):
        written = value.replace(tzinfo=None)
    elif isinstance(value, Decimal) and kind.tp is not Tp.NEWDECIMAL:
        written = int(value)
    assert arrived(written, kind) == value


def test_geometry_and_vector_have_no_spark_type() -> None:
    assert spark_type(FieldType(Tp.GEOMETRY)) is None
    assert spark_type(FieldType(Tp.VECTOR)) is None


@pytest.mark.parametrize("tp", [Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP])
def test_zero_date_is_null_or_refused_by_option(tp: Tp) -> None:
    kind = FieldType(tp)
    assert of_datum(Uint(0), kind) is None
    with pytest.raises(DecodeError, match=r"0000-00-00.*is not a date that Spark can hold; with zero-dates = null"):
        of_datum(Uint(0), kind, zero_dates_fail=True)


def packed(year: int, month: int, day: int, hour: int = 0, second: int = 0, micros: int = 0) -> Uint:
    return Uint((((year * 13 + month) << 5 | day) << 17 | hour << 12 | second) << 24 | micros)


@pytest.mark.parametrize("tp", [Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP])
@pytest.mark.parametrize("date", [(2020, 0, 10), (2020, 1, 0), (2023, 2, 29), (0, 1, 1), (2020, 4, 31)], ids=str)
def test_date_that_spark_cannot_hold_is_null_or_refused_by_option(tp: Tp, date: tuple[int, int, int]) -> None:
    assert of_datum(packed(*date), FieldType(tp)) is None
    with pytest.raises(DecodeError, match="{:04d}-{:02d}-{:02d}.*Spark can hold; with zero-dates = null".format(*date)):
        of_datum(packed(*date), FieldType(tp), zero_dates_fail=True)


@pytest.mark.parametrize("time", [(24,), (0, 60), (0, 0, 1_000_000)], ids=str)
def test_packed_bits_that_are_no_time_are_refused(time: tuple[int, ...]) -> None:
    with pytest.raises(DecodeError, match=r"packed time: 0x.* is not a date and time"):
        of_datum(packed(2020, 1, 1, *time), FieldType(Tp.DATETIME))


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-46, float("nan"), float("inf")])
def test_double_in_float_column_becomes_nearest_float(value: float) -> None:
    assert repr(of_datum(value, FieldType(Tp.FLOAT))) == repr(float(np.float32(value)))


@pytest.mark.parametrize("value", [-3.5e38, 1e300])
def test_double_beyond_float_is_refused(value: float) -> None:
    with pytest.raises(DecodeError, match=r"float column: .* is too large"):
        of_datum(value, FieldType(Tp.FLOAT))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (FieldType(Tp.TINY), 128),
        (FieldType(Tp.BIT, flen=1), Uint(1 << 63)),
        (FieldType(Tp.SET, elems=("a",)), Uint(2)),
        (FieldType(Tp.NEWDECIMAL, flen=3, decimal=1), TiDBDecimal("123.4", 4, 1)),
    ],
    ids=lambda value: str(value) if not isinstance(value, FieldType) else value.mysql_name,
)
def test_number_beyond_its_column_is_refused(kind: FieldType, value: Datum) -> None:
    with pytest.raises((DecodeError, pa.ArrowInvalid)):
        of_datum(value, kind)


def test_text_with_invalid_utf8_is_refused() -> None:
    with pytest.raises(DecodeError, match="it is not UTF-8"):
        of_datum(b"a\xff", FieldType(Tp.VARCHAR, **UTF8))


@pytest.mark.parametrize("tp", [Tp.LONG, Tp.DOUBLE, Tp.DATE, Tp.DURATION, Tp.VARCHAR, Tp.NEWDECIMAL, Tp.ENUM])
def test_datum_of_another_type_is_refused(tp: Tp) -> None:
    wrong: Datum = 1.5 if tp is not Tp.DOUBLE else b"x"
    with pytest.raises(DecodeError):
        of_datum(wrong, FieldType(tp, flen=5, elems=("a",)))


def test_text_of_binary_value_is_hexadecimal() -> None:
    assert text_of(b"\x01\xff", FieldType(Tp.BLOB)) == "0x01ff"
    assert text_of(None, FieldType(Tp.BLOB)) is None
    assert text_of(7, FieldType(Tp.LONG)) == "7"


@given(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)))
def test_datetime_of_any_value_reads_back_equal(when: datetime.datetime) -> None:
    assert arrived(when, FieldType(Tp.DATETIME, decimal=6)) == when
    assert arrived(when.date(), FieldType(Tp.DATE)) == when.date()


@given(st.integers(-(838 * 3600 + 3599) * 10**6, (838 * 3600 + 3599) * 10**6))
def test_duration_of_any_value_reads_back_equal(micros: int) -> None:
    span = datetime.timedelta(microseconds=micros)
    assert arrived(span, FieldType(Tp.DURATION, decimal=6)) == span


@given(st.decimals(min_value=-(10**20), max_value=10**20, allow_nan=False, places=10))
def test_decimal_of_any_value_reads_back_equal(value: Decimal) -> None:
    assert arrived(value, FieldType(Tp.NEWDECIMAL, flen=38, decimal=10)) == value
