"""One self-delimiting value: a flag byte and a payload, in key form (compares with memcmp) or value form (compact).

Decoding accepts either form. Python values of a datum (`Datum`):

| flag | Python |
|---|---|
| nil | None |
| int, varint | int |
| uint, uvarint | Uint (an int that remembers to be written unsigned) |
| float | float |
| decimal | Decimal (str: canonical text; keeps precision and frac) |
| duration | Duration (int: nanoseconds) |
| bytes, compact bytes | bytes |
| json | BinaryJSON (bytes: type code and body) |
"""

from __future__ import annotations

from typing import TypeAlias

from binlog.errors import DecodeError

from .decimal import Decimal, decode_decimal, encode_decimal
from .json import BinaryJSON, cut_json
from .memcomparable import (
    decode_bytes,
    decode_float,
    decode_int,
    decode_uint,
    encode_bytes,
    encode_float,
    encode_int,
    encode_uint,
)
from .varint import (
    decode_compact_bytes,
    decode_uvarint,
    decode_varint,
    encode_compact_bytes,
    encode_uvarint,
    encode_varint,
)

NIL = 0x00
BYTES = 0x01
COMPACT_BYTES = 0x02
INT = 0x03
UINT = 0x04
FLOAT = 0x05
DECIMAL = 0x06
DURATION = 0x07
VARINT = 0x08
UVARINT = 0x09
JSON = 0x0A


class Uint(int):
    """An unsigned 64-bit number: unsigned integers, packed times, ENUM, SET and BIT."""

    __slots__ = ()


class Duration(int):
    """Nanoseconds under the duration flag, which only a clustered TIME key's handle carries."""

    __slots__ = ()


Datum: TypeAlias = "int | Uint | float | Decimal | Duration | bytes | BinaryJSON | None"


def decode_one(buf: bytes, pos: int = 0) -> tuple[Datum, int]:
    """Decode a datum: (value, position after it). Raises DecodeError for an unknown flag or a truncated payload."""
    if pos >= len(buf):
        raise DecodeError("datum", offset=pos, detail="invalid encoded key")
    flag = buf[pos]
    pos += 1
    if flag == VARINT:
        return decode_varint(buf, pos)
    if flag == COMPACT_BYTES:
        return decode_compact_bytes(buf, pos)
    if flag == UVARINT:
        number, end = decode_uvarint(buf, pos)
        return Uint(number), end
    if flag == NIL:
        return None, pos
    if flag == DECIMAL:
        return decode_decimal(buf, pos)
    if flag == FLOAT:
        return decode_float(buf, pos)
    if flag == JSON:
        end = cut_json(buf, pos)
        return BinaryJSON(buf[pos:end]), end
    return _decode_key_form(buf, pos, flag)


def _decode_key_form(buf: bytes, pos: int, flag: int) -> tuple[Datum, int]:
    if flag == BYTES:
        return decode_bytes(buf, pos)
    if flag == INT:
        return decode_int(buf, pos)
    if flag == UINT:
        number, end = decode_uint(buf, pos)
        return Uint(number), end
    if flag == DURATION:
        number, end = decode_int(buf, pos)
        return Duration(number), end
    raise DecodeError("datum", offset=pos - 1, detail=f"invalid encoded key flag {flag}")


def encode_value(value: Datum) -> bytes:
    """Encode in value form. Raises ValueError if a number does not fit its kind, TypeError if it is not a datum."""
    if value is None:
        return b"\x00"
    if type(value) is int:
        return b"\x08" + encode_varint(value)
    if type(value) is bytes:
        return b"\x02" + encode_compact_bytes(value)
    if type(value) is Uint:
        return b"\x09" + encode_uvarint(value)
    return _encode_either_form(value)


def encode_key(value: Datum) -> bytes:
    """Encode in key form. Errors as for `encode_value`."""
    if value is None:
        return b"\x00"
    if isinstance(value, Uint):
        return b"\x04" + encode_uint(value)
    if isinstance(value, int) and not isinstance(value, Duration):
        return b"\x03" + encode_int(value)
    if isinstance(value, bytes) and not isinstance(value, BinaryJSON):
        return b"\x01" + encode_bytes(value)
    return _encode_either_form(value)


def _encode_either_form(value: object) -> bytes:
    if isinstance(value, float):
        return b"\x05" + encode_float(value)
    if isinstance(value, Decimal):
        return b"\x06" + encode_decimal(value, value.precision, value.frac)
    if isinstance(value, Duration):
        return b"\x07" + encode_int(value)
    if isinstance(value, BinaryJSON):
        return b"\x0a" + value
    raise TypeError(f"{type(value).__name__} is not a datum")
