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

In key form, a number has 8 bytes. Bytes are in groups of eight, zero-padded, each with a marker `0xff - padding`, so
that concatenated values compare in the order of their parts. The last marker is below ff, so the end is known. Decoders
take (buffer, position) and return (value, position after it).
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from binlog.errors import DecodeError

from .decimal import Decimal, decode_decimal, encode_decimal
from .json import BinaryJSON, cut_json
from .varint import (
    INT64_MAX,
    INT64_MIN,
    TOO_SHORT,
    UINT64_MAX,
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

GROUP = 8
_MARKER = 0xFF
_SIGN = 1 << 63
_uint64 = struct.Struct(">Q")
_float64 = struct.Struct(">d")


def encode_bytes(data: bytes) -> bytes:
    """Encode to (len // 8 + 1) * 9 bytes."""
    out = bytearray()
    for at in range(0, len(data) + 1, GROUP):
        part = data[at : at + GROUP]
        out += part.ljust(GROUP, b"\0")
        out.append(_MARKER - GROUP + len(part))
    return bytes(out)


def decode_bytes(buf: bytes, pos: int = 0) -> tuple[bytes, int]:
    """Decode a value. Raises DecodeError for a truncated group, an invalid marker, or padding that is not zero."""
    parts: list[bytes] = []
    at = pos + GROUP
    while at < len(buf):
        parts.append(buf[at - GROUP : at])
        padding = _MARKER - buf[at]
        if padding > GROUP:
            raise DecodeError("memcomparable bytes", offset=at, detail=f"invalid marker byte {buf[at]:#04x}")
        if padding:
            data = b"".join(parts)
            size = len(data) - padding
            if any(data[size:]):
                raise DecodeError("memcomparable bytes", offset=at, detail="invalid padding byte")
            return data[:size], at + 1
        at += GROUP + 1
    raise DecodeError("memcomparable bytes", offset=len(buf), detail=TOO_SHORT)


def encode_uint(value: int) -> bytes:
    """Encode as big-endian. Raises ValueError outside 0 … 2^64-1."""
    if not 0 <= value <= UINT64_MAX:
        raise ValueError(f"{value} is not an unsigned 64-bit number")
    return _uint64.pack(value)


def encode_int(value: int) -> bytes:
    """Encode as big-endian with the sign bit flipped. Raises ValueError outside the signed 64-bit range."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{value} is not a signed 64-bit number")
    return _uint64.pack(value + _SIGN)


def encode_float(value: float, *, signed_zero: bool = False) -> bytes:
    """Encode a float. Non-negative: the sign bit is set; negative: all bits are flipped.

    TiDB up to at least 8.1 writes -0.0 like +0.0; the newest version tests the sign bit (`signed_zero`).
    """
    bits: int = _uint64.unpack(_float64.pack(value))[0]
    if value == 0 and not signed_zero:
        bits = 0
    return _uint64.pack(bits ^ UINT64_MAX if bits & _SIGN else bits | _SIGN)


def decode_uint(buf: bytes, pos: int = 0) -> tuple[int, int]:
    """Decode an unsigned number. Raises DecodeError if fewer than 8 bytes are left."""
    if len(buf) - pos < 8:
        raise DecodeError("64-bit number", offset=pos, detail=TOO_SHORT)
    value: int = _uint64.unpack_from(buf, pos)[0]
    return value, pos + 8


def decode_int(buf: bytes, pos: int = 0) -> tuple[int, int]:
    value, end = decode_uint(buf, pos)
    return value - _SIGN, end


def decode_float(buf: bytes, pos: int = 0) -> tuple[float, int]:
    """Decode a float. Accepts both forms of -0.0. Raises DecodeError if fewer than 8 bytes are left."""
    bits, end = decode_uint(buf, pos)
    value: float = _float64.unpack(_uint64.pack(bits ^ _SIGN if bits & _SIGN else bits ^ UINT64_MAX))[0]
    return value, end


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
