"""Defaults of columns, as the fields of a schema contain them.

`avro_defaults` = "ticdc" writes the defaults as TiCDC does: bytes are base64 text, CURRENT_TIMESTAMP is a text like any
other, the default of a TIMESTAMP is in UTC, and a DECIMAL in the precise form has none. A reader that fills fields with
these defaults does not always get the column's default. "avro" writes what Avro's specification requires, and no
default if it is not constant.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.time import from_zone, parse_datetime, timestamp_text
from binlog.tidb.types import Tp

from drainer.protocol.avro.types import AvroType
from drainer.protocol.options import ProtocolOptions
from drainer.row.column_type import ColumnType
from drainer.row.type_class import TypeClass

Json = int | float | str | None
_WRAP: Final = 1 << 64
_TIMES: Final = (TypeClass.DATE, TypeClass.DATETIME, TypeClass.TIME)


def default_of(info: ColumnInfo, column_type: ColumnType, made: AvroType, options: ProtocolOptions) -> Json:
    """Return the default of a field, None if it has none. `made`: the Avro type of `column_type`."""
    strict = options.avro_defaults == "avro"
    raw = _raw(info)
    if raw is None or (strict and info.default_is_expr):
        return None
    try:
        if isinstance(raw, bytes):
            return _bytes(raw, column_type, strict=strict)
        if isinstance(raw, bool):
            raw = int(raw)
        if made.precision is not None:
            return _unscaled(str(raw), made) if strict else None
        return _OF[made.primitive](raw, column_type, options, strict)
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _raw(info: ColumnInfo) -> Any:
    """Return the current default, or, if there is none, the value that rows older than the column have."""
    is_bytes = info.type.tp is Tp.BIT or info.type.is_binary
    for value, octets in ((info.default, info.default_bit), (info.origin_default, info.origin_default_bit)):
        if octets is not None and is_bytes:
            return octets
        if value is not None:
            return value.encode("utf-8", "surrogateescape") if is_bytes and isinstance(value, str) else value
    return None


def _bytes(raw: bytes, column_type: ColumnType, *, strict: bool) -> str:
    if not strict:
        return base64.b64encode(raw).decode()
    if column_type.type_class is TypeClass.BIT:
        raw = raw.lstrip(b"\0") or b"\0"
    return raw.decode("latin-1")  # one code point for each byte


def _unscaled(text: str, made: AvroType) -> str:
    assert made.scale is not None
    scaled = Decimal(text).scaleb(made.scale)
    number = int(scaled)
    if number != scaled:
        raise ValueError(f"{text} has more digits than the column")
    return twos_complement(number).decode("latin-1")


def twos_complement(number: int) -> bytes:
    """Return a big-endian number with as few bytes as possible, as Java and goavro write decimals."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() >> 3) + 1, "big", signed=True)


def _int(raw: Any, column_type: ColumnType, options: ProtocolOptions, strict: bool) -> Json:
    number = int(raw)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{number} is not an int")
    return number


def _long(raw: Any, column_type: ColumnType, options: ProtocolOptions, strict: bool) -> Json:
    number = int(raw)
    if column_type.kind.is_unsigned and number >= 1 << 63:
        number -= _WRAP  # as values do
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} is not a long")
    return number


def _double(raw: Any, column_type: ColumnType, options: ProtocolOptions, strict: bool) -> Json:
    number = float(raw)
    if not isfinite(number):
        raise ValueError(f"{raw} is not a number")
    return number


def _float(raw: Any, column_type: ColumnType, options: ProtocolOptions, strict: bool) -> Json:
    (single,) = struct.unpack("<f", struct.pack("<f", float(raw)))
    return _double(single, column_type, options, strict)


def _text(raw: Any, column_type: ColumnType, options: ProtocolOptions, strict: bool) -> Json:
    text = str(raw)
    if not strict:
        return text
    if column_type.type_class is TypeClass.ENUM and text not in column_type.kind.elems:
        raise ValueError(f"{text!r} is none of the names")
    if column_type.type_class in (TypeClass.DATE, TypeClass.DATETIME):
        packed = parse_datetime(text, column_type.kind.fsp)  # refuses CURRENT_TIMESTAMP
        if column_type.kind.tp is Tp.TIMESTAMP:
            zone = options.zone
            return timestamp_text(from_zone(packed, UTC), column_type.kind.fsp, zone)
    return text


def _as_bytes(raw: Any, column_type: ColumnType, options: ProtocolOptions, strict: bool) -> Json:
    if column_type.type_class is TypeClass.BIT and isinstance(raw, int):
        return _bytes(raw.to_bytes(8, "big").lstrip(b"\0") or b"\0", column_type, strict=strict)
    return _bytes(str(raw).encode("utf-8", "surrogateescape"), column_type, strict=strict)


_OF: Final[dict[str, Callable[[Any, ColumnType, ProtocolOptions, bool], Json]]] = {
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "string": _text,
    "bytes": _as_bytes,
}
