"""Encodes bytes in groups of eight, so that concatenated values compare in the order of their parts (flag 01).

Every group has 8 bytes, zero-padded, and a marker `0xff - padding`. The last group's marker is below ff, so a value is
self-delimiting.
"""

from __future__ import annotations

from binlog.errors import DecodeError

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
