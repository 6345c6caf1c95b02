"""One column's decoded values (row/column_type.py) as text in the form that several protocols use: dates, decimals,
names, JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.flatten import enum_text, set_text
from binlog.tidb.time import to_zone
from binlog.tidb.types import Tp

from drainer.changes.texts import text_of
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.rules import mapped

# The bits of a packed time that hold seconds and microseconds (binlog.tidb.time).
_BELOW_MINUTE: Final = np.uint64(30)
_SECONDS: Final = np.uint64((1 << 30) - 1)


def names_of(column_type: ColumnType) -> Callable[[int], str]:
    """Return a function from the number of an ENUM or SET to its name or names. It raises DecodeError for a number that
    a column of this type cannot hold."""
    named = enum_text if column_type.type_class is TypeClass.ENUM else set_text
    return partial(named, kind=column_type.kind)


def texts_of(column_type: ColumnType, array: Any, zone: tzinfo) -> Any:
    """Convert a column, also of binary strings, to a `binary` array. Each distinct ENUM or SET is converted once."""
    type_class = column_type.type_class
    if type_class is TypeClass.BYTES:
        return array
    if type_class is TypeClass.TEXT:
        utf8(array)
        return array
    if type_class in (TypeClass.ENUM, TypeClass.SET):
        names = names_of(column_type)
        return distinct(lambda value: names(value).encode())(array)
    if column_type.kind.tp is Tp.TIMESTAMP and str(zone) != "UTC":
        array = in_zone(array, zone)
    return text_of(column_type, array)


def each(text: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    """Return a fragment that calls `text` for each value."""

    def run(array: Any) -> Any:
        return pa.array([None if value is None else text(value) for value in array.to_pylist()], pa.binary())

    return run


def distinct(text: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    """Return a fragment that calls `text` once for each distinct value of a batch."""
    return lambda array: mapped(array, text, pa.binary())


def utf8(array: Any) -> Any:
    """Cast a TEXT column to `string`. Raises DecodeError if the bytes are not UTF-8."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise DecodeError("text", offset=0, detail="not UTF-8") from None


def in_zone(array: Any, zone: tzinfo) -> Any:
    """Convert packed times from UTC to another zone. The offset is looked up once for each distinct minute."""
    packed = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    minutes, minute_of = np.unique(packed >> _BELOW_MINUTE, return_inverse=True)
    begin = [minute << int(_BELOW_MINUTE) for minute in minutes.tolist()]
    shifted = np.array([to_zone(at, zone) for at in begin], np.uint64)
    rest = packed & _SECONDS
    if (shifted & _SECONDS).any():  # an offset with seconds, as some zones had until 1972
        found = np.array([to_zone(at, zone) for at in packed.tolist()], np.uint64)
    else:
        found = shifted[minute_of] | rest
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(found, pa.uint64(), mask=mask)
