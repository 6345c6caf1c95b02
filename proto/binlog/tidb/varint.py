"""Variable-length integers and length-prefixed bytes, with the exact semantics of Go's encoding/binary.

A *uvarint* is little-endian base 128; the high bit of a byte means that more bytes follow. A *varint* is the uvarint of
a zigzag number. *Compact bytes* are a **signed** varint length and the raw bytes. Decoders take (buffer, position) and
return (value, position after it). They accept non-minimal encodings.
"""

from __future__ import annotations

from typing import Final, NoReturn

from binlog.errors import DecodeError

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1

TOO_SHORT = "insufficient bytes to decode value"
TOO_LARGE = "value larger than 64 bits"
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]  # most are


def encode_uvarint(value: int) -> bytes:
    """Encode minimally, in 1 to 10 bytes. Raises ValueError outside 0 … 2^64-1."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if not 0 <= value <= UINT64_MAX:
        raise ValueError(f"{value} is not an unsigned 64-bit number")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """Encode as zigzag, then uvarint. Raises ValueError outside the signed 64-bit range."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{value} is not a signed 64-bit number")
    return encode_uvarint(value << 1 if value >= 0 else ~(value << 1))


def encode_compact_bytes(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


def decode_uvarint(buf: bytes, pos: int = 0) -> tuple[int, int]:
    """Decode a uvarint. Raises DecodeError if the buffer ends first, or the value needs more than 64 bits."""
    try:
        byte = buf[pos]
        if byte < 0x80:
            return byte, pos + 1
        value = byte & 0x7F
        shift = 7
        at = pos + 1
        while (byte := buf[at]) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > 63 and at < len(buf):
                # Any eleventh byte is an overflow. If the buffer ends after ten bytes that all announce more, it is
                # only truncated.
                _overflow(pos)
    except IndexError:
        raise DecodeError("uvarint", offset=len(buf), detail=TOO_SHORT) from None
    value |= byte << shift
    if value > UINT64_MAX:
        _overflow(pos)
    return value, at + 1


def _overflow(pos: int) -> NoReturn:
    raise DecodeError("uvarint", offset=pos, detail=TOO_LARGE)


def decode_varint(buf: bytes, pos: int = 0) -> tuple[int, int]:
    """Decode a varint. Raises DecodeError as `decode_uvarint` does."""
    raw, end = decode_uvarint(buf, pos)
    return (raw >> 1) ^ -(raw & 1), end


def decode_compact_bytes(buf: bytes, pos: int = 0) -> tuple[bytes, int]:
    """Decode compact bytes. Raises DecodeError if the length is negative or exceeds the remaining bytes."""
    length, start = decode_varint(buf, pos)
    end = start + length
    if length < 0 or end > len(buf):
        raise DecodeError("compact bytes", offset=pos, detail=f"{TOO_SHORT}, expected length: {length}")
    return buf[start:end], end


# Protobuf messages from bytes: varints, and fields with their tags.
_KEPT_MAX: Final = 1 << 16  # larger numbers are encoded each time


class Varints(dict[int, bytes]):
    """Maps numbers to unsigned varints, behind `tag`. Small ones are encoded once. Raises ValueError outside
    0 … 2^64-1."""

    def __init__(self, tag: bytes = b"") -> None:
        super().__init__()
        self._tag = tag

    def __missing__(self, value: int) -> bytes:
        found = self._tag + encode_uvarint(value)
        if value < _KEPT_MAX:
            self[value] = found
        return found


VARINTS: Final = Varints()


def signed(value: int) -> bytes:
    """Return the varint of an int64 or int32. The varint of a negative number has ten bytes."""
    return VARINTS[value & UINT64_MAX]


def field(tag: bytes, payload: bytes) -> bytes:
    """Return a field that holds bytes, text or a message."""
    return tag + VARINTS[len(payload)] + payload
