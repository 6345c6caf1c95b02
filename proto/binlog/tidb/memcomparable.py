"""Bytes in groups of eight, so that concatenated values still compare as their parts do (flag 01).

Every group is 8 bytes, zero-padded, and a marker `0xff - padding`; the last group's marker is below ff, so a
value ends by itself. The "desc" form complements every byte.
"""

from __future__ import annotations

from binlog.errors import DecodeError

GROUP = 8
_MARKER = 0xFF
_COMPLEMENT = bytes(255 - b for b in range(256))
_PADDING = bytes(GROUP)


def encode_bytes(data: bytes) -> bytes:
    """(len // 8 + 1) * 9 bytes."""
    out = bytearray()
    for at in range(0, len(data) + 1, GROUP):
        part = data[at : at + GROUP]
        padding = GROUP - len(part)
        out += part
        out += _PADDING[:padding]
        out.append(_MARKER - padding)
    return bytes(out)


def encode_bytes_desc(data: bytes) -> bytes:
    return encode_bytes(data).translate(_COMPLEMENT)


def cut_bytes(buf: bytes, pos: int = 0) -> int:
    """The position after the value; groups are counted, their padding is not looked at."""
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
    """DecodeError on a torn group, a marker that means more than 8 padding bytes, or padding that is not zero."""
    end = cut_bytes(buf, pos)
    return _strip(buf[pos:end], pos), end


def decode_bytes_desc(buf: bytes, pos: int = 0) -> tuple[bytes, int]:
    plain = buf[pos:].translate(_COMPLEMENT)
    end = cut_bytes(plain)
    return _strip(plain[:end], pos), pos + end


def _strip(groups: bytes, offset: int) -> bytes:
    parts = [groups[at : at + GROUP] for at in range(0, len(groups), GROUP + 1)]
    data = b"".join(parts)
    padding = _MARKER - groups[-1]
    if any(data[len(data) - padding :]):
        raise DecodeError("memcomparable bytes", offset=offset + len(groups) - 1, detail="invalid padding byte")
    return data[: len(data) - padding]
