"""Values whose memcmp order is the order of what they mean: the key form of a datum.

A number has 8 bytes. Bytes (flag 01) are in groups of eight, zero-padded, each with a marker `0xff - padding`, so that
concatenated values compare in the order of their parts. The last marker is below ff, so a value is self-delimiting.
Decoders take (buffer, position) and return (value, position after it).
"""

from __future__ import annotations

import struct

from binlog.errors import DecodeError

from .varint import INT64_MAX, INT64_MIN, TOO_SHORT, UINT64_MAX

GROUP = 8
_MARKER = 0xFF


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


_SIGN = 1 << 63
_uint64 = struct.Struct(">Q")
_float64 = struct.Struct(">d")


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
