"""Convert columns of decoded values to columns of text, as it is written between the quotes of a literal and in a key.
Pure.

Every function accepts and returns arrays of one length, NULL for NULL; the result is `binary`. DecodeError, which names
no row, is raised for a value that no column of its type can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.time import date_text, datetime_text, duration_text
from binlog.tidb.types import Tp

from drainer.changes.json_texts import json_texts
from drainer.changes.vector import Words
from drainer.row.column_type import ColumnType, TypeClass, bit_number, double_text, float_text, set_bits
from drainer.row.rules import mapped

Octets = npt.NDArray[np.uint8]
_U64 = np.uint64
_TWO: Final = np.frombuffer(b"".join(b"%02d" % n for n in range(100)), np.uint16)
_TIME: Final = b"0000-00-00 00:00:00.000000"
# Offset of each two digits in it.
_DIGITS: Final = np.dtype(
    {
        "names": ["century", "year", "month", "day", "hour", "minute", "second", "micro_1", "micro_2", "micro_3"],
        "formats": [np.uint16] * 10,
        "offsets": [0, 2, 5, 8, 11, 14, 17, 20, 22, 24],
        "itemsize": len(_TIME),
    }
)
_HEX: Final = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), np.uint16)
_YMD_MAX: Final = _U64(4_160_000)  # 10000 * 13 << 5


def data_of(column: Any) -> Octets:
    """Return the bytes of a binary or string array's values, one after another."""
    data, offsets = column.buffers()[2], offsets_of(column)
    if data is None:
        return np.zeros(0, np.uint8)
    found: Octets = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return found


def offsets_of(column: Any) -> npt.NDArray[np.int32]:
    """Return where the values of a binary or string array begin in its buffer, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def fixed_width(chars: Octets, like: Any) -> Any:
    """Return a matrix of characters, one row for each value, as a binary array that is NULL where `like` is."""
    count, width = chars.shape
    return binary_of(chars.tobytes(), np.arange(count + 1, dtype=np.int32) * np.int32(width), like)


def binary_of(data: bytes | bytearray, offsets: npt.NDArray[Any], like: Any) -> Any:
    """Return the parts of `data` between consecutive offsets as a binary array that is NULL where `like` is."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32, copy=False)), pa.py_buffer(data)]
    found = pa.Array.from_buffers(pa.binary(), len(like), buffers)
    return pc.if_else(like.is_valid(), found, None) if like.null_count else found


def as_string(column: Any) -> Any:
    """Return the same bytes as a string array, unchecked, for kernels that do not accept binary."""
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count, column.offset)


def as_binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def text_of(column_type: ColumnType, column: Any) -> Any:
    """Return each value as a literal has it between its quotes. ENUM, SET and BIT give the number, BYTES hexadecimal
    digits.
    """
    return _TEXTS[column_type.type_class](column_type, column)


def numbers_of(column_type: ColumnType, column: Any) -> Any:
    """Return the number of each ENUM, SET or BIT as text."""
    if column_type.type_class is TypeClass.ENUM:
        beyond = pc.greater(column, pa.scalar(len(column_type.kind.elems), pa.uint64()))
        if pc.any(beyond).as_py():
            return pc.if_else(beyond, pa.scalar(0, pa.uint64()), column)
    if column_type.type_class is TypeClass.SET and len(column_type.kind.elems) < 64 and len(column):
        most = pc.max(column).as_py()
        set_bits(most or 0, len(column_type.kind.elems))
    if column_type.type_class is TypeClass.BIT and column_type.kind.flen < 64 and len(column):
        bit_number(pc.max(column).as_py() or 0, max(column_type.kind.flen, 1))
    return column


def _whole(column_type: ColumnType, column: Any) -> Any:
    return as_binary(pc.cast(column, pa.string()))


def _number(column_type: ColumnType, column: Any) -> Any:
    return _whole(column_type, numbers_of(column_type, column))


def _as_it_is(column_type: ColumnType, column: Any) -> Any:
    return as_binary(column)


def _float(column_type: ColumnType, column: Any) -> Any:
    show = float_text if column_type.kind.tp is Tp.FLOAT else double_text
    return as_binary(pa.array([None if v is None else show(v) for v in column.to_pylist()], pa.string()))


def _json(column_type: ColumnType, column: Any) -> Any:
    return json_texts(column)


def _duration(column_type: ColumnType, column: Any) -> Any:
    """Format times. Usually there are few distinct values, so each is formatted once."""
    fsp = column_type.kind.fsp
    return mapped(column, lambda value: duration_text(value, fsp).encode(), pa.binary())


def _hex(column_type: ColumnType, column: Any) -> Any:
    offsets = offsets_of(column)
    return binary_of(_HEX[data_of(column)].tobytes(), (offsets - offsets[0]) * 2, column)


def _date(column_type: ColumnType, column: Any) -> Any:
    packed: Words = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    ymd = packed >> _U64(41)
    for bad in packed[ymd >= _YMD_MAX][:1].tolist():
        date_text(bad)
    return fixed_width(_characters(_days(ymd), 10), column)


def _days(ymd: Words) -> Any:
    """Return an array of `_DIGITS` with these dates, and 0 for the rest."""
    found = np.full(len(ymd), _TIME, f"S{len(_TIME)}").view(_DIGITS)
    month = (ymd >> _U64(5)).astype(np.int64)
    year = month // 13
    century = year // 100
    found["century"], found["year"] = _TWO[century], _TWO[year - 100 * century]
    found["month"], found["day"] = _TWO[month - 13 * year], _TWO[(ymd & _U64(31)).astype(np.int64)]
    return found


def _characters(digits: Any, width: int) -> Octets:
    """Return the first characters of each value, one row for each value."""
    chars: Octets = digits.view(np.uint8).reshape(len(digits), len(_TIME))
    return chars if width == len(_TIME) else np.ascontiguousarray(chars[:, :width])


def _datetime(column_type: ColumnType, column: Any) -> Any:
    fsp = column_type.kind.fsp
    packed: Words = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    bits = (packed >> _U64(24)).astype(np.int64)
    hour, minute, second = bits >> 12 & 31, bits >> 6 & 63, bits & 63
    ymd, micros = packed >> _U64(41), (packed & _U64(0xFFFFFF)).astype(np.int64)
    wrong = (ymd >= _YMD_MAX) | (hour > 23) | (minute > 59) | (second > 59)
    for bad in packed[wrong | (micros > 999_999 if fsp else False)][:1].tolist():
        datetime_text(bad, fsp)
    found = _days(ymd)
    found["hour"], found["minute"], found["second"] = _TWO[hour], _TWO[minute], _TWO[second]
    if fsp:
        four = micros // 100
        two = four // 100
        found["micro_1"], found["micro_2"], found["micro_3"] = (
            _TWO[two],
            _TWO[four - 100 * two],
            _TWO[micros - 100 * four],
        )
    return fixed_width(_characters(found, 20 + fsp if fsp else 19), column)


_TEXTS: Final[dict[TypeClass, Callable[[ColumnType, Any], Any]]] = {
    TypeClass.INT: _whole,
    TypeClass.DECIMAL: _as_it_is,
    TypeClass.FLOAT: _float,
    TypeClass.TEXT: _as_it_is,
    TypeClass.BYTES: _hex,
    TypeClass.DATE: _date,
    TypeClass.DATETIME: _datetime,
    TypeClass.TIME: _duration,
    TypeClass.ENUM: _number,
    TypeClass.SET: _number,
    TypeClass.BIT: _number,
    TypeClass.JSON: _json,
}
