"""Map columns of TiDB to columns of Spark: the type of each, and its values in the form that Arrow accepts. Pure.

| TiDB | Spark |
|---|---|
| TINYINT, SMALLINT, MEDIUMINT and INT, BIGINT | byte, short, int, long |
| the same UNSIGNED | short, int, int (MEDIUMINT) or long (INT), decimal(20,0) |
| YEAR; BIT(n) | short; long, for 64 bits decimal(20,0) |
| FLOAT, DOUBLE | float, double |
| DECIMAL(p,s) | decimal(p,s); string where p is above 38, which is Spark's limit |
| DATE; DATETIME; TIMESTAMP | date; timestamp_ntz; timestamp |
| TIME | interval day to second |
| CHAR, VARCHAR, TEXT, ENUM, SET, JSON | string |
| BINARY, VARBINARY, BLOB | binary |

A date with a zero month or day (and the zero date) is no date for Spark: NULL, or an error with `zero-dates` = fail.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.time import unpack
from binlog.tidb.types import FLOATS, INTEGERS, TIMES, FieldType, Tp
from binlog.tidb.unflatten import to_float32, to_text
from pyspark.sql import types as spark

DECIMAL_DIGITS_MAX = 38
_EPOCH = datetime.date(1970, 1, 1)
_EPOCH_TIME = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)

Convert = Callable[[Datum], object]  # of a value that is not NULL

_SIGNED: dict[Tp, spark.DataType] = {
    Tp.TINY: spark.ByteType(),
    Tp.SHORT: spark.ShortType(),
    Tp.INT24: spark.IntegerType(),
    Tp.LONG: spark.IntegerType(),
    Tp.LONGLONG: spark.LongType(),
    Tp.YEAR: spark.ShortType(),
}
_UNSIGNED: dict[Tp, spark.DataType] = {
    Tp.TINY: spark.ShortType(),
    Tp.SHORT: spark.IntegerType(),
    Tp.INT24: spark.IntegerType(),
    Tp.LONG: spark.LongType(),
    Tp.LONGLONG: spark.DecimalType(20, 0),
    Tp.YEAR: spark.ShortType(),
}
_OTHERS: dict[Tp, spark.DataType] = {
    Tp.FLOAT: spark.FloatType(),
    Tp.DOUBLE: spark.DoubleType(),
    Tp.DATE: spark.DateType(),
    Tp.NEWDATE: spark.DateType(),
    Tp.DATETIME: spark.TimestampNTZType(),
    Tp.TIMESTAMP: spark.TimestampType(),
    Tp.DURATION: spark.DayTimeIntervalType(spark.DayTimeIntervalType.DAY, spark.DayTimeIntervalType.SECOND),
    Tp.ENUM: spark.StringType(),
    Tp.SET: spark.StringType(),
    Tp.JSON: spark.StringType(),
}


def spark_type(kind: FieldType) -> spark.DataType | None:
    """Return the Spark type. None: Spark has no type for such a column."""
    if kind.tp in INTEGERS:
        return (_UNSIGNED if kind.is_unsigned else _SIGNED)[kind.tp]
    if kind.tp is Tp.BIT:
        return spark.DecimalType(20, 0) if kind.flen > 63 else spark.LongType()
    if kind.tp is Tp.NEWDECIMAL:
        whole = kind.flen if kind.flen > 0 else 10
        return spark.DecimalType(whole, max(kind.decimal, 0)) if whole <= DECIMAL_DIGITS_MAX else spark.StringType()
    if kind.tp is Tp.GEOMETRY:
        return None
    if kind.is_string:
        return spark.BinaryType() if kind.is_binary else spark.StringType()
    return _OTHERS.get(kind.tp)


def converter(kind: FieldType, *, zero_dates_fail: bool) -> Convert:
    """Return a function from a datum of a column of this type to a value that `pyarrow.array` accepts for
    `spark_type(kind)`. The function raises DecodeError for a datum that such a column cannot hold."""
    tp = kind.tp
    if tp in INTEGERS or tp is Tp.BIT:
        return _decimal_of_int if isinstance(spark_type(kind), spark.DecimalType) else _int
    if tp in FLOATS:
        return _float if tp is Tp.FLOAT else _double
    if tp is Tp.NEWDECIMAL and isinstance(spark_type(kind), spark.DecimalType):
        return lambda value: decimal.Decimal(_text(value, kind))
    if tp in TIMES:
        return _time(kind, zero_dates_fail)
    if tp is Tp.DURATION:
        return _microseconds
    if kind.is_binary:
        return _bytes
    return lambda value: _text(value, kind)


def text_of(value: Datum, kind: FieldType) -> str | None:
    """Return the value as TiDB shows it; bytes in hexadecimal after 0x."""
    text = to_text(value, kind)
    return "0x" + text.hex() if isinstance(text, bytes) else _checked(text, kind)


def _text(value: Datum, kind: FieldType) -> str:
    text = to_text(value, kind)
    assert isinstance(text, str)
    return _checked(text, kind) or ""


def _checked(text: str | None, kind: FieldType) -> str | None:
    """Spark's strings are UTF-8; `to_text` marks other bytes with lone surrogates."""
    if text is not None and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DecodeError(f"{kind.mysql_name} column", offset=error.start, detail="it is not UTF-8") from None
    return text


def _unfit(value: object, name: str) -> DecodeError:
    return DecodeError(f"{name} column", offset=0, detail=f"it cannot hold a {type(value).__name__}")


def _int(value: Datum) -> int:
    if not isinstance(value, int):
        raise _unfit(value, "integer")
    return int(value)


def _decimal_of_int(value: Datum) -> decimal.Decimal:
    return decimal.Decimal(_int(value))


def _double(value: Datum) -> float:
    if not isinstance(value, float):
        raise _unfit(value, "double")
    return value


def _float(value: Datum) -> float:
    return to_float32(_double(value))


def _microseconds(value: Datum) -> int:
    return _int(value) // 1000


def _bytes(value: Datum) -> bytes:
    if not isinstance(value, bytes):
        raise _unfit(value, "binary")
    return bytes(value)


def _time(kind: FieldType, zero_fails: bool) -> Convert:
    """Return days since 1970 for a DATE, else microseconds."""
    is_date = kind.tp in (Tp.DATE, Tp.NEWDATE)

    def convert(value: Datum) -> int | None:
        when = unpack(_int(value))
        try:
            if is_date:
                return (datetime.date(when.year, when.month, when.day) - _EPOCH).days
            return (datetime.datetime(*when) - _EPOCH_TIME) // _MICROSECOND
        except ValueError:
            if zero_fails:
                detail = f"{_text(value, kind)} is not a date that Spark can hold; with zero-dates = null it is NULL"
                raise DecodeError(f"{kind.mysql_name} column", offset=0, detail=detail) from None
            return None

    return convert
