"""Convert columns of decoded values to columns of text, as it is written between the quotes of a literal and in a key;
and rows of a server's text protocol to columns of decoded values. Pure.

A function to text accepts and returns arrays of one length, NULL for NULL; the result is `binary`. DecodeError, which
names no row, is raised for a value that no column of its type can hold.

The values of a server's rows are those that a row of a binlog gives (row/column_type.py), if columns are selected by
`selected`. A JSON document is equal as text: it does not say which of its numbers and strings had another type in TiDB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.json import encode_json
from binlog.tidb.time import date_text, datetime_text, duration_text, parse_duration
from binlog.tidb.types import Tp
from binlog.tidb.varint import INT64_MIN, UINT64_MAX

from drainer.changes.json_texts import json_texts
from drainer.changes.reading import spans
from drainer.changes.vector import Buffer, Ints, Words
from drainer.ddl.lexer import quoted
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass, bit_number, double_text, float_text, set_bits
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


_NULL: Final = 0xFB
# The first byte of a length of several bytes, and how many follow.
_LENGTHS: Final = ((0xFC, 2), (0xFD, 3), (0xFE, 8))
_LENGTH_MAX: Final = np.uint64(1 << 31)
_DOUBLE_BITS: Final = 53
_DATE_CHARS: Final = 10
_SECOND_CHARS: Final = 19
# The characters between the digits, by their index.
_MARKS: Final = {4: b"-", 7: b"-", 10: b" ", 13: b":", 16: b":", 19: b"."}


def selected(column: str, column_type: ColumnType) -> str:
    """The expression whose text has the whole value of a column.

    ENUM, SET and BIT are read as numbers, because the text of ENUM 0 is that of the name ''; a SET of many names as
    these, because TiDB makes a DOUBLE of its number. The text of a FLOAT may have fewer digits than its value. Strings
    are read as bytes, because a server may replace what is not UTF-8 in texts; only a gbk string, whose bytes would be
    GBK's, is read as text."""
    name = quoted(column)
    if column_type.type_class in NUMBERS - {TypeClass.INT} and not is_read_as_names(column_type):
        return f"CAST({name} AS UNSIGNED)"
    if column_type.kind.tp is Tp.FLOAT:
        return f"CAST({name} AS DOUBLE)"
    if column_type.type_class is TypeClass.TEXT and not column_type.kind.charset.startswith("gb"):
        return f"CAST({name} AS BINARY)"
    return name


def is_read_as_names(column_type: ColumnType) -> bool:
    """Whether it is a SET whose number a DOUBLE may not hold. If one of so many names is '', a set of this name alone
    is read as the empty set."""
    return column_type.type_class is TypeClass.SET and len(column_type.kind.elems) > _DOUBLE_BITS


def decoded(column_types: Sequence[ColumnType], packets: Sequence[bytes]) -> list[Any]:
    """Return one Arrow array of decoded values for each column. `packets`: row packets of the MySQL protocol. Raises
    DecodeError, which does not say in which row."""
    texts = texts_of(packets, len(column_types))
    return [decoded_column(of, column) for of, column in zip(column_types, texts, strict=True)]


def texts_of(packets: Sequence[bytes], columns: int) -> list[Any]:
    """The fields of row packets as binary arrays. Raises DecodeError for packets that do not have so many columns."""
    buffer = Buffer(packets)
    sizes: Ints = np.fromiter(map(len, packets), np.int64, len(packets))
    ends = np.cumsum(sizes)
    at = ends - sizes
    found = []
    for _ in range(columns):
        at, stop, null = _field(buffer, at)
        if (stop > ends).any():
            raise DecodeError("row of a server", offset=0, detail=f"packet of {columns} columns ends within one")
        found.append(spans(buffer, (at, stop), null))
        at = stop
    if (at != ends).any():
        raise DecodeError("row of a server", offset=0, detail=f"packet has more than {columns} columns")
    return found


def _field(buffer: Buffer, at: Ints) -> tuple[Ints, Ints, Any]:
    """(begin of the text, its end, whether it is NULL) of the field at each offset."""
    head = buffer.octets[at]
    null = head == _NULL
    length, size = head.astype(_U64), np.ones(len(at), np.int64)
    for first, more in _LENGTHS:
        wide = head == first
        if wide.any():
            length[wide] = buffer.words(at[wide] + 1) & _U64((1 << 8 * more) - 1)
            size[wide] += more
    length[null] = 0
    begin = at + size
    return begin, begin + np.minimum(length, _LENGTH_MAX).astype(np.int64), null


def decoded_column(column_type: ColumnType, texts: Any) -> Any:
    """Convert one column. Raises DecodeError for a text that no value of the type has."""
    try:
        found = _DECODE[column_type.type_class](column_type, texts)
    except (pa.ArrowInvalid, ValueError, KeyError, RecursionError) as error:
        what = f"text of a {column_type.kind.mysql_name} column"
        raise DecodeError(what, offset=0, detail=str(error).splitlines()[0]) from None
    assert found.type == column_type.decoded_type
    return found


def _parsed_number(column_type: ColumnType, texts: Any) -> Any:
    return pc.cast(as_string(texts), column_type.decoded_type)


def _set(column_type: ColumnType, texts: Any) -> Any:
    if not is_read_as_names(column_type):
        return _parsed_number(column_type, texts)
    bits = {name.encode(): 1 << at for at, name in enumerate(column_type.kind.elems)} | {b"": 0}
    return mapped(texts, lambda text: sum(bits[name] for name in text.split(b",")), pa.uint64())


def _decimal(column_type: ColumnType, texts: Any) -> Any:
    pc.cast(as_string(texts), pa.float64())  # a text that is no number
    return as_string(texts)


def _parsed_float(column_type: ColumnType, texts: Any) -> Any:
    wide = _parsed_number(column_type, texts)
    return wide if column_type.kind.tp is Tp.DOUBLE else pc.cast(pc.cast(wide, pa.float32()), pa.float64())


def _moment(column_type: ColumnType, texts: Any) -> Any:
    """DATE, DATETIME and TIMESTAMP: all of a column have the same number of characters."""
    fsp = 0 if column_type.type_class is TypeClass.DATE else column_type.kind.fsp
    width = _DATE_CHARS if column_type.type_class is TypeClass.DATE else _SECOND_CHARS + bool(fsp) * (1 + fsp)
    null = texts.is_null().to_numpy(zero_copy_only=False)
    there = texts.drop_null() if null.any() else texts
    if (pc.binary_length(there).to_numpy(zero_copy_only=False) != width).any():
        raise ValueError(f"{width} characters expected")
    digits = data_of(there).reshape(len(there), width).astype(np.int64) - ord("0")
    for index, mark in _MARKS.items():
        if index < width:
            if (digits[:, index] != mark[0] - ord("0")).any():
                raise ValueError(f"{mark.decode()!r} expected at character {index}")
            digits[:, index] = 0
    if ((digits < 0) | (digits > 9)).any():
        raise ValueError("a digit expected")
    packed = np.zeros(len(texts), np.uint64)
    packed[~null] = _packed(digits).view(np.uint64)
    return pa.array(packed, pa.uint64(), mask=null if null.any() else None)


def _packed(digits: Any) -> Ints:
    """See binlog.tidb.time.pack. The marks between the digits are 0."""

    def number(begin: int, end: int) -> Ints:
        found: Ints = digits[:, begin:end] @ 10 ** np.arange(end - begin - 1, -1, -1)
        return found

    days = (number(0, 4) * 13 + number(5, 7)) << 5 | number(8, 10)
    if digits.shape[1] == _DATE_CHARS:
        return days << 41
    seconds = number(11, 13) << 12 | number(14, 16) << 6 | number(17, 19)
    fraction = digits[:, 20:]
    micros = number(20, digits.shape[1]) * 10 ** (6 - fraction.shape[1]) if fraction.size else 0
    found: Ints = (days << 17 | seconds) << 24 | micros
    return found


def _document(text: bytes) -> bytes:
    return bytes(encode_json(json.loads(text.decode("utf-8", "replace"), parse_int=_json_number)))


def _json_number(digits: str) -> int | float:
    """-0 is a float's text, as no integer has it."""
    if digits == "-0" or len(digits) > len(str(INT64_MIN)):
        return float(digits)
    number = int(digits)
    return number if INT64_MIN <= number <= UINT64_MAX else float(digits)


_DECODE: Final[dict[TypeClass, Callable[[ColumnType, Any], Any]]] = {
    TypeClass.INT: _parsed_number,
    TypeClass.ENUM: _parsed_number,
    TypeClass.SET: _set,
    TypeClass.BIT: _parsed_number,
    TypeClass.DECIMAL: _decimal,
    TypeClass.FLOAT: _parsed_float,
    TypeClass.TEXT: lambda _, texts: texts,
    TypeClass.BYTES: lambda _, texts: texts,
    TypeClass.DATE: _moment,
    TypeClass.DATETIME: _moment,
    TypeClass.TIME: lambda _, texts: mapped(texts, lambda text: parse_duration(text.decode()), pa.int64()),
    TypeClass.JSON: lambda _, texts: mapped(texts, _document, pa.binary()),
}
