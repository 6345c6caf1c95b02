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
_PADDING = bytes(GROUP)


def encode_bytes(data: bytes) -> bytes:
    """Encode to (len // 8 + 1) * 9 bytes."""
    out = bytearray()
    for at in range(0, len(data) + 1, GROUP):
        part = data[at : at + GROUP]
        padding = GROUP - len(part)
        out += part
        out += _PADDING[:padding]
        out.append(_MARKER - padding)
    return bytes(out)


def cut_bytes(buf: bytes, pos: int = 0) -> int:
    """Return the position after the value. Groups are counted; their padding is not checked."""
    at = pos + GROUP
    size = len(buf)
    while at < size:
        marker = buf[at]
        if marker != _MARKER:
            if _MARKER - marker > GROUP:
                raise DecodeError("memcomparable bytes", offset=at, detail=f"invalid marker byte {marker:#04x}")
            return at + 1
        at += GROUP + 1
    raise DecodeError("memcomparable bytes", offset=size, detail="insufficient bytes to decode value")


def decode_bytes(buf: bytes, pos: int = 0) -> tuple[bytes, int]:
    """Decode a value. Raises DecodeError for a truncated group, an invalid marker, or padding that is not zero."""
    end = cut_bytes(buf, pos)
    return _strip(buf[pos:end], pos), end


def _strip(groups: bytes, offset: int) -> bytes:
    parts = [groups[at : at + GROUP] for at in range(0, len(groups), GROUP + 1)]
    data = b"".join(parts)
    padding = _MARKER - groups[-1]
    if any(data[len(data) - padding :]):
        raise DecodeError("memcomparable bytes", offset=offset + len(groups) - 1, detail="invalid padding byte")
    return data[: len(data) - padding]


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
