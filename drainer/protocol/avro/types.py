"""The Avro type of a column, and its default, as the fields of a schema contain them.

`avro_defaults` = "ticdc" writes the defaults as TiCDC does: bytes are base64 text, CURRENT_TIMESTAMP is a text like any
other, the default of a TIMESTAMP is in UTC, and a DECIMAL in the precise form has none. A reader that fills fields with
these defaults does not always get the column's default. "avro" writes what Avro's specification requires, and no
default if it is not constant.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final, Literal

from binlog.tidb.column import ColumnInfo
from binlog.tidb.time import from_zone, parse_datetime, timestamp_text
from binlog.tidb.types import Tp

from drainer.protocol.options import ProtocolOptions
from drainer.row.column_type import ColumnType, TypeClass

# The Avro type of a column.

Primitive = Literal["int", "long", "float", "double", "string", "bytes", "boolean"]

_DECIMAL_PRECISION: Final = 10  # for a DECIMAL whose type does not state it
_NAMES: Final = {
    TypeClass.DECIMAL: "DECIMAL",
    TypeClass.TEXT: "TEXT",
    TypeClass.BYTES: "BLOB",
    TypeClass.DATE: "DATE",
    TypeClass.TIME: "TIME",
    TypeClass.ENUM: "ENUM",
    TypeClass.SET: "SET",
    TypeClass.BIT: "BIT",
    TypeClass.JSON: "JSON",
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """An Avro type. `parameters`: the members of `connect.parameters`, sorted by name. `precision` and `scale`: those
    of a decimal whose bytes are its unscaled number, else None."""

    primitive: Primitive
    parameters: tuple[tuple[str, str], ...]
    precision: int | None = None
    scale: int | None = None

    @property
    def document(self) -> dict[str, object]:
        """Return the type as a document, with members in TiCDC's order."""
        found: dict[str, object] = {"type": self.primitive, "connect.parameters": dict(self.parameters)}
        if self.precision is not None:
            found |= {"logicalType": "decimal", "precision": self.precision, "scale": self.scale}
        return found


def avro_type(column_type: ColumnType, options: ProtocolOptions) -> AvroType:
    """Return the Avro type of a column's values."""
    type_class, kind = column_type.type_class, column_type.kind
    name = ("tidb_type", _tidb_type(column_type))
    if type_class is TypeClass.DECIMAL and options.avro_decimal_handling_mode == "precise":
        precision = kind.flen if kind.flen >= 0 else _DECIMAL_PRECISION
        return AvroType("bytes", (name,), precision, max(kind.decimal, 0))
    if type_class is TypeClass.BIT:
        return AvroType("bytes", (("length", str(kind.flen if kind.flen >= 0 else 1)), name))
    if type_class in (TypeClass.ENUM, TypeClass.SET):
        return AvroType("string", (("allowed", allowed_text(kind.elems)), name))
    return AvroType(_primitive(column_type, options), (name,))


def _primitive(column_type: ColumnType, options: ProtocolOptions) -> Primitive:
    type_class, kind = column_type.type_class, column_type.kind
    if type_class is TypeClass.INT:
        if kind.tp is Tp.LONGLONG:
            as_text = kind.is_unsigned and options.avro_bigint_unsigned_handling_mode == "string"
            return "string" if as_text else "long"
        return "long" if kind.tp is Tp.LONG and kind.is_unsigned else "int"
    if type_class is TypeClass.FLOAT:
        return "float" if kind.tp is Tp.FLOAT else "double"
    return "bytes" if type_class is TypeClass.BYTES else "string"


def _tidb_type(column_type: ColumnType) -> str:
    type_class, kind = column_type.type_class, column_type.kind
    if kind.tp is Tp.VECTOR:
        return "TiDBVECTORFloat32"
    if type_class is TypeClass.INT:
        if kind.tp is Tp.YEAR:
            return "YEAR"
        name = "BIGINT" if kind.tp is Tp.LONGLONG else "INT"
        return f"{name} UNSIGNED" if kind.is_unsigned else name
    if type_class is TypeClass.FLOAT:
        return "FLOAT" if kind.tp is Tp.FLOAT else "DOUBLE"
    if type_class is TypeClass.DATETIME:
        return "TIMESTAMP" if kind.tp is Tp.TIMESTAMP else "DATETIME"
    return _NAMES[type_class]


def allowed_text(names: tuple[str, ...]) -> str:
    """Return the names of an ENUM or SET as one text. Only commas inside names are escaped, so this is all that
    `allowed_names` can undo."""
    return ",".join(name.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for name in names)


def allowed_names(text: str) -> tuple[str, ...]:
    """Split `allowed_text` into names. An empty text may stand for no name or for one empty name; the result is one
    empty name."""
    return tuple(name.replace("\0", ",") for name in text.replace("\\,", "\0").split(","))


Json = int | float | str | None
_WRAP: Final = 1 << 64


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
        match made.primitive:
            case "int":
                return _whole(int(raw), 32)
            case "long":  # a number above 2^63-1 becomes negative, as values do
                number = int(raw)
                wraps = column_type.kind.is_unsigned and number >= 1 << 63
                return _whole(number - _WRAP if wraps else number, 64)
            case "float":
                (single,) = struct.unpack("<f", struct.pack("<f", float(raw)))
                return _finite(single)
            case "double":
                return _finite(float(raw))
            case "bytes" if column_type.type_class is TypeClass.BIT and isinstance(raw, int):
                return _bytes(raw.to_bytes(8, "big").lstrip(b"\0") or b"\0", column_type, strict=strict)
            case "bytes":
                return _bytes(str(raw).encode("utf-8", "surrogateescape"), column_type, strict=strict)
            case _:
                return _text(str(raw), column_type, options.zone) if strict else str(raw)
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


def _whole(number: int, bits: int) -> int:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{number} has more than {bits} bits")
    return number


def _finite(number: float) -> float:
    if not isfinite(number):
        raise ValueError(f"{number} is not a number")
    return number


def _text(text: str, column_type: ColumnType, zone: tzinfo) -> str:
    if column_type.type_class is TypeClass.ENUM and text not in column_type.kind.elems:
        raise ValueError(f"{text!r} is none of the names")
    if column_type.type_class in (TypeClass.DATE, TypeClass.DATETIME):
        packed = parse_datetime(text, column_type.kind.fsp)  # refuses CURRENT_TIMESTAMP
        if column_type.kind.tp is Tp.TIMESTAMP:
            return timestamp_text(from_zone(packed, UTC), column_type.kind.fsp, zone)
    return text
