"""Rows of a server's text protocol to columns of decoded values. Pure; the reverse of changes/texts.py.

The values are those that a row of a binlog gives (row/column_type.py), if columns are selected by `selected`. A JSON
document is equal as text: it does not say which of its numbers and strings had another type in TiDB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.json import encode_json
from binlog.tidb.time import parse_duration
from binlog.tidb.types import Tp
from binlog.tidb.varint import INT64_MIN, UINT64_MAX

from drainer.changes.reading import spans
from drainer.changes.texts import as_string, data_of
from drainer.changes.vector import Buffer, Ints
from drainer.ddl.lexer import quoted
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass
from drainer.row.rules import mapped

_U64 = np.uint64
_NULL: Final = 0xFB
# The first byte of a length of several bytes, and how many follow.
_LENGTHS: Final = ((0xFC, 2), (0xFD, 3), (0xFE, 8))
_LENGTH_MAX: Final = _U64(1 << 31)
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


def _number(column_type: ColumnType, texts: Any) -> Any:
    return pc.cast(as_string(texts), column_type.decoded_type)


def _set(column_type: ColumnType, texts: Any) -> Any:
    if not is_read_as_names(column_type):
        return _number(column_type, texts)
    bits = {name.encode(): 1 << at for at, name in enumerate(column_type.kind.elems)} | {b"": 0}
    return mapped(texts, lambda text: sum(bits[name] for name in text.split(b",")), pa.uint64())


def _decimal(column_type: ColumnType, texts: Any) -> Any:
    pc.cast(as_string(texts), pa.float64())  # a text that is no number
    return as_string(texts)


def _float(column_type: ColumnType, texts: Any) -> Any:
    wide = _number(column_type, texts)
    return wide if column_type.kind.tp is Tp.DOUBLE else pc.cast(pc.cast(wide, pa.float32()), pa.float64())


def _as_it_is(column_type: ColumnType, texts: Any) -> Any:
    return texts


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
    TypeClass.INT: _number,
    TypeClass.ENUM: _number,
    TypeClass.SET: _set,
    TypeClass.BIT: _number,
    TypeClass.DECIMAL: _decimal,
    TypeClass.FLOAT: _float,
    TypeClass.TEXT: _as_it_is,
    TypeClass.BYTES: _as_it_is,
    TypeClass.DATE: _moment,
    TypeClass.DATETIME: _moment,
    TypeClass.TIME: lambda _, texts: mapped(texts, lambda text: parse_duration(text.decode()), pa.int64()),
    TypeClass.JSON: lambda _, texts: mapped(texts, _document, pa.binary()),
}
