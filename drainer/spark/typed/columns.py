"""Convert columns of decoded values (drainer.row.column_type) to columns of Spark's types: `types.converter` for
complete columns. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.json import BinaryJSON
from binlog.tidb.types import FieldType, Tp
from pyspark.sql.pandas.types import to_arrow_type

from drainer.row.column_type import TypeClass, type_class_of
from drainer.spark.typed.types import Convert, converter, spark_type

ConvertColumn = Callable[[Any], Any]  # from and to a pyarrow Array; NULL stays NULL

_NANOSECONDS = 1000
_YEARS_BEFORE_1970 = 1970


def column_converter(kind: FieldType, *, zero_dates_fail: bool) -> ConvertColumn:
    """Return a function from decoded values of a column of this type to an array of `spark_type(kind)`. The function
    raises DecodeError or pyarrow.ArrowInvalid, which name no row, if the array contains a value that Spark's type
    cannot hold.
    """
    type_class = type_class_of(kind)
    wanted = arrow_type(kind)
    if type_class in (TypeClass.DATE, TypeClass.DATETIME):
        return lambda column: _times(column, wanted, is_date=type_class is TypeClass.DATE, zero_fails=zero_dates_fail)
    if type_class is TypeClass.TIME:
        return lambda column: _durations(column, wanted)
    if type_class is TypeClass.FLOAT and kind.tp is Tp.FLOAT:
        return _floats
    if type_class in (TypeClass.ENUM, TypeClass.SET, TypeClass.JSON):
        return _distinct(converter(kind, zero_dates_fail=zero_dates_fail), type_class, wanted)
    return lambda column: column.cast(wanted)


def arrow_type(kind: FieldType) -> Any:
    """Return the Arrow type of `spark_type(kind)`."""
    wanted = spark_type(kind)
    assert wanted is not None  # fields_of has rejected the others
    return to_arrow_type(wanted, timezone="UTC")


def _array(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_], wanted: Any) -> Any:
    return pa.array(values, mask=absent if absent.any() else None).cast(wanted)


def _absent(column: Any) -> npt.NDArray[np.bool_]:
    absent: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return absent


def _times(column: Any, wanted: Any, *, is_date: bool, zero_fails: bool) -> Any:
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
    if bool(((year > 9999) | (hour > 23) | (minute > 59) | (second > 59) | (micros > 999_999)).any()):
        raise DecodeError("packed time", offset=0, detail="no date and time")
    months = (year - _YEARS_BEFORE_1970) * 12 + np.maximum(month, 1) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    no_date = (year < 1) | (month < 1) | (day < 1) | (day > following - first)
    if zero_fails and bool((no_date & ~absent).any()):
        raise DecodeError("packed time", offset=0, detail="not a date that Spark can hold")
    days = first + day - 1
    if is_date:
        return _array(days.astype(np.int32), absent | no_date, wanted)
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    return _array(seconds * 1_000_000 + micros, absent | no_date, wanted)


def _durations(column: Any, wanted: Any) -> Any:
    """Convert nanoseconds to microseconds, rounded down."""
    absent = _absent(column)
    values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return _array(values // _NANOSECONDS, absent, wanted)


def _floats(column: Any) -> Any:
    """Convert doubles to 32-bit floats. Raises DecodeError for one that is beyond FLOAT."""
    floats = column.cast(pa.float32(), safe=False)
    if bool(pc.any(pc.and_(pc.is_inf(floats), pc.is_finite(column))).as_py()):
        raise DecodeError("float column", offset=0, detail="a value is too large")
    return floats


def _distinct(convert: Convert, type_class: TypeClass, wanted: Any) -> ConvertColumn:
    """Convert each distinct value once."""
    is_json = type_class is TypeClass.JSON

    def converted(column: Any) -> Any:
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        texts = [convert(BinaryJSON(value)) if is_json else convert(value) for value in values]
        return pa.array(texts, wanted).take(encoded.indices)

    return converted
