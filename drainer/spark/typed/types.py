"""Map columns of TiDB to columns of Spark: the type of each, and the conversion of a column of decoded values
(drainer.row.column_type), with one function for each type class. docs/changes.md lists the types. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import to_float32, to_text
from binlog.tidb.json import BinaryJSON
from binlog.tidb.time import unpack
from binlog.tidb.types import INTEGERS, FieldType, Tp
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from drainer.row.column_type import TypeClass, type_class_of

DECIMAL_DIGITS_MAX = 38
_NANOSECONDS = 1000
_YEARS_BEFORE_1970 = 1970

ConvertColumn = Callable[[Any], Any]  # from and to a pyarrow Array; NULL stays NULL

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


def arrow_type(kind: FieldType) -> Any:
    """Return the Arrow type of `spark_type(kind)`."""
    wanted = spark_type(kind)
    assert wanted is not None  # fields_of has rejected the others
    return to_arrow_type(wanted, timezone="UTC")


def column_converter(kind: FieldType, *, zero_dates_fail: bool) -> ConvertColumn:
    """Return a function from decoded values of a column of this type to an array of `spark_type(kind)`. The function
    raises DecodeError or pyarrow.ArrowInvalid, which name no row, if the array contains a value that the column or
    Spark's type cannot hold.
    """
    type_class = type_class_of(kind)
    wanted = arrow_type(kind)
    if type_class in (TypeClass.DATE, TypeClass.DATETIME):
        return lambda column: _times(column, kind, wanted, zero_fails=zero_dates_fail)
    if type_class is TypeClass.TIME:
        return lambda column: _durations(column, wanted)
    if type_class is TypeClass.FLOAT and kind.tp is Tp.FLOAT:
        return _floats
    if type_class in (TypeClass.ENUM, TypeClass.SET, TypeClass.JSON):
        return lambda column: _distinct(column, kind, wanted)
    if type_class is TypeClass.TEXT:
        return lambda column: _texts(column, kind, wanted)
    return lambda column: column.cast(wanted)


def text_of(value: Datum, kind: FieldType) -> str | None:
    """Return the value as TiDB shows it; bytes in hexadecimal after 0x. Raises DecodeError for text that is not UTF-8,
    which Spark's strings are."""
    text = to_text(value, kind)
    if isinstance(text, bytes):
        return "0x" + text.hex()
    if text is not None and not text.isascii():
        try:
            text.encode()  # `to_text` marks other bytes with lone surrogates
        except UnicodeEncodeError as error:
            raise DecodeError(f"{kind.mysql_name} column", offset=error.start, detail="it is not UTF-8") from None
    return text


def _array(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_], wanted: Any) -> Any:
    return pa.array(values, mask=absent if absent.any() else None).cast(wanted)


def _absent(column: Any) -> npt.NDArray[np.bool_]:
    absent: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return absent


def _times(column: Any, kind: FieldType, wanted: Any, *, zero_fails: bool) -> Any:
    """Convert packed times to days since 1970 (int32) or microseconds since 1970 (int64); binlog.tidb.time has the
    layout.
    """
    absent = _absent(column)
    packed = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    bits = (packed >> np.uint64(24)).astype(np.int64)
    micros = (packed & np.uint64(0xFFFFFF)).astype(np.int64)
    hour, minute, second = bits >> 12 & 31, bits >> 6 & 63, bits & 63
    year, month = np.divmod(bits >> 22, 13)
    day = bits >> 17 & 31
    no_time = (year > 9999) | (hour > 23) | (minute > 59) | (second > 59) | (micros > 999_999)
    if bool(no_time.any()):
        unpack(int(packed[no_time.argmax()]))  # raises
    months = (year - _YEARS_BEFORE_1970) * 12 + np.maximum(month, 1) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    no_date = ((year < 1) | (month < 1) | (day < 1) | (day > following - first)) & ~absent
    if zero_fails and bool(no_date.any()):
        text = text_of(int(packed[no_date.argmax()]), kind)
        detail = f"{text} is not a date that Spark can hold; with zero-dates = null it is NULL"
        raise DecodeError(f"{kind.mysql_name} column", offset=0, detail=detail)
    days = first + day - 1
    if type_class_of(kind) is TypeClass.DATE:
        return _array(days.astype(np.int32), absent | no_date, wanted)
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    return _array(seconds * 1_000_000 + micros, absent | no_date, wanted)


def _durations(column: Any, wanted: Any) -> Any:
    """Convert nanoseconds to microseconds, rounded down."""
    values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return _array(values // _NANOSECONDS, _absent(column), wanted)


def _floats(column: Any) -> Any:
    """Convert doubles to 32-bit floats. Raises DecodeError for one that is beyond FLOAT."""
    floats = column.cast(pa.float32(), safe=False)
    too_large = pc.and_(pc.is_inf(floats), pc.is_finite(column))
    if bool(pc.any(too_large).as_py()):
        to_float32(pc.filter(column, too_large)[0].as_py())  # raises
    return floats


def _distinct(column: Any, kind: FieldType, wanted: Any) -> Any:
    """Convert each distinct value to text once."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if kind.tp is Tp.JSON:
        values = [BinaryJSON(value) for value in values]
    return pa.array([text_of(value, kind) for value in values], wanted).take(encoded.indices)


def _texts(column: Any, kind: FieldType, wanted: Any) -> Any:
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        for value in column.to_pylist():
            text_of(value, kind)  # raises, with the position in the value
        raise
