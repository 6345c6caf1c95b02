"""The columns of the secondary binlog: the field for each type (`D-TR-08`), and complete columns as bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from itertools import repeat
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.types import FieldType, Tp

from drainer.protocol.column_text import texts_of
from drainer.protocol.protobuf_bytes import VARINTS, uvarints
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.text import bit_number, enum_index, set_bits

# Column: is_null=1, int64_value=2, uint64_value=3, double_value=4, bytes_value=5, string_value=6
NULL: Final = b"\x08\x01"
INT64, UINT64, _DOUBLE, BYTES, STRING = b"\x10", b"\x18", b"\x21", b"\x2a", b"\x32"
_double = Struct("<d").pack


def cells(column_type: ColumnType, array: Any, zone: tzinfo) -> list[bytes]:
    """Encode a column's decoded values (row/column_type.py), each as a field `columns` of a Row, with its tag and
    length. Raises DecodeError for a value that a column of its type cannot hold."""
    return [b"\x0a" + VARINTS[len(value)] + value for value in _columns(column_type, array, zone)]


def _columns(column_type: ColumnType, array: Any, zone: tzinfo) -> list[bytes]:
    """Encode decoded values as messages `Column`."""
    type_class, kind = column_type.type_class, column_type.kind
    if type_class is TypeClass.TEXT:
        return _lengths(STRING, array.to_pylist())
    if type_class is TypeClass.BYTES:
        return _lengths(BYTES, array.to_pylist())
    if type_class is TypeClass.FLOAT:
        return [NULL if value is None else _DOUBLE + _double(value) for value in _doubles(kind, array)]
    if type_class is TypeClass.INT and kind.tp is not Tp.YEAR:
        return _integers(UINT64 if kind.is_unsigned else INT64, array)
    if type_class in (TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT):
        return _each(_number(kind, type_class), array)
    tag = BYTES if type_class is TypeClass.JSON else STRING
    return _lengths(tag, texts_of(column_type, array, zone).to_pylist())


def _lengths(tag: bytes, values: list[bytes | None]) -> list[bytes]:
    return [NULL if value is None else tag + VARINTS[len(value)] + value for value in values]


def _integers(tag: bytes, array: Any) -> list[bytes]:
    """Encode integers. Negative numbers have the ten bytes of their two's complement."""
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).view(np.uint64)
    found = [tag + number for number in uvarints(numbers)]
    for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist() if array.null_count else ():
        found[index] = NULL
    return found


def _each(encode: Callable[[int], bytes], array: Any) -> list[bytes]:
    """Encode each distinct value once if there are few of them."""
    values = array.to_pylist()
    known: dict[int | None, bytes] = {value: encode(value) for value in set(values) if value is not None}
    known[None] = NULL
    return [known[value] for value in values]


def _doubles(kind: FieldType, array: Any) -> list[float | None]:
    """Encode doubles. A FLOAT is rounded to the 32-bit float that it is."""
    found: list[float | None] = array.to_pylist()
    if kind.tp is not Tp.FLOAT:
        return found
    singles = [0.0 if value is None else value for value in found]
    with np.errstate(over="ignore"):
        rounded = np.array(singles, np.float64).astype(np.float32).astype(np.float64)
    if not np.isfinite(rounded).all():
        raise DecodeError("float", offset=0, detail="a value does not fit 4 bytes")
    return pa.array(rounded, mask=np.array([value is None for value in found], bool)).to_pylist()  # type: ignore[no-any-return]


def _number(kind: FieldType, type_class: TypeClass) -> Callable[[int], bytes]:
    if type_class is TypeClass.BIT:
        width = max(kind.flen, 1)
        size = (width + 7) // 8
        head = BYTES + VARINTS[size]
        return lambda value: head + bit_number(value, width).to_bytes(size, "big")
    if type_class is TypeClass.ENUM:
        count = len(kind.elems)
        return lambda value: UINT64 + VARINTS[enum_index(value, count)]
    if type_class is TypeClass.SET:
        count = len(kind.elems)
        return lambda value: UINT64 + VARINTS[set_bits(value, count)]
    assert kind.tp is Tp.YEAR, "other whole numbers are encoded together"
    return lambda value: STRING + VARINTS[len(str(value))] + str(value).encode()


def rows(images: list[list[bytes]], count: int) -> list[bytes]:
    """Return messages `Row` from the cells of each column."""
    return list(map(b"".join, zip(*images, strict=True))) if images else list(repeat(b"", count))
