"""Encodes complete columns as datums in value form, as in TiDB-Binlog's files (`D-TR-09`). Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from struct import Struct
from typing import Any, Final

from binlog.errors import DecodeError
from binlog.tidb.datum import encode_value
from binlog.tidb.number import encode_float
from binlog.tidb.types import Tp

from drainer.protocol.column_text import texts_of
from drainer.protocol.protobuf_bytes import VARINTS
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import bit_number, enum_index, set_bits

NULL: Final = b"\x00"
_single = Struct("<f")


def datums(form: Form, array: Any, zone: tzinfo) -> list[bytes]:
    """Encode carriers (row/carrier.py). Dates, times, DECIMAL and JSON are text, a TIMESTAMP in `zone`. ENUM, SET and
    BIT are unsigned numbers. Raises DecodeError for a value that a column of its type cannot hold."""
    family = form.family
    if family in (Family.TEXT, Family.BYTES):
        return _texts(array.to_pylist())
    if family in (Family.INT, Family.ENUM, Family.SET, Family.BIT, Family.FLOAT):
        return _each(_number(form), array.to_pylist())
    return _texts([None if text is None else text.encode() for text in texts_of(form, array, zone)])


def _texts(values: list[bytes | None]) -> list[bytes]:
    return [NULL if value is None else b"\x02" + VARINTS[2 * len(value)] + value for value in values]


def _each(encode: Callable[[Any], bytes], values: list[Any]) -> list[bytes]:
    """Encode each distinct value once."""
    known = {value: encode(value) for value in set(values) if value}
    known |= {0: encode(0), None: NULL}
    return [known[value] for value in values]


def _number(form: Form) -> Callable[[Any], bytes]:
    kind, family = form.kind, form.family
    if family is Family.FLOAT:
        return _as_single if kind.tp is Tp.FLOAT else lambda value: b"\x05" + encode_float(value)
    if family is Family.INT and (kind.tp is Tp.YEAR or not kind.is_unsigned):
        return encode_value
    if family is Family.ENUM:
        return lambda value: b"\x09" + VARINTS[enum_index(value, len(kind.elems))]
    if family is Family.SET:
        return lambda value: b"\x09" + VARINTS[set_bits(value, len(kind.elems))]
    if family is Family.BIT:
        return lambda value: b"\x09" + VARINTS[bit_number(value, max(kind.flen, 1))]
    return lambda value: b"\x09" + VARINTS[value]


def _as_single(value: float) -> bytes:
    try:
        return b"\x05" + encode_float(_single.unpack(_single.pack(value))[0])
    except OverflowError:
        raise DecodeError("float", offset=0, detail=f"{value} does not fit 4 bytes") from None
