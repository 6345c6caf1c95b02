"""Reads protobuf's wire format without protobuf objects: varints, tags, and skipping of fields.

Positions are offsets into one buffer. `end` is the end of the current message. Only DecodeError is raised.
"""

from __future__ import annotations

from binlog.errors import DecodeError

WHAT = "binlog"
U64 = (1 << 64) - 1
I64_SIGN = 1 << 63


def varint(data: bytes, at: int, end: int | None = None) -> tuple[int, int]:
    """Read an unsigned 64-bit varint at `at`: (value, offset after it). At most ten bytes; bits above 64 are
    dropped.
    """
    value = shift = 0
    limit = len(data) if end is None else end
    start = at
    while at < limit:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & U64, at
        shift += 7
        if shift >= 70:
            raise DecodeError(WHAT, offset=start, detail="varint longer than 10 bytes")
    raise DecodeError(WHAT, offset=limit, detail="unexpected EOF in a varint")


def signed(value: int) -> int:
    return value - (1 << 64) if value & I64_SIGN else value


def signed32(value: int) -> int:
    """Return an int32 or enum: the low 32 bits, as Go reads them."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def tag(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Read a tag: (field number, wire type, offset after the tag)."""
    key, after = varint(data, at, end)
    number = (key >> 3) & 0xFFFFFFFF
    if number == 0 or number >= 1 << 29:
        raise DecodeError(WHAT, offset=at, detail=f"illegal field number {number}")
    return number, key & 7, after


def skip(data: bytes, at: int, end: int, number: int, wire: int) -> int:
    """Return the offset after the value of an unknown field."""
    if wire == 0:
        return varint(data, at, end)[1]
    if wire == 1:
        return within(at + 8, end)
    if wire == 2:
        size, after = varint(data, at, end)
        return within(after + size, end)
    if wire == 5:
        return within(at + 4, end)
    if wire == 3:
        return skip_group(data, at, end, number)
    raise DecodeError(WHAT, offset=at, detail=f"field {number} has wire type {wire}")


def skip_group(data: bytes, at: int, end: int, number: int) -> int:
    """Return the offset after a group's end tag. Groups may nest. A stack is used, so that input cannot cause deep
    recursion.
    """
    open_groups = [number]
    while open_groups:
        inner, wire, at = tag(data, at, end)
        if wire == 3:
            open_groups.append(inner)
        elif wire == 4:
            if open_groups.pop() != inner:
                raise DecodeError(WHAT, offset=at, detail=f"end of group {inner} without its start")
        else:
            at = skip(data, at, end, inner, wire)
    return at


def within(at: int, end: int) -> int:
    if at > end:
        raise DecodeError(WHAT, offset=end, detail="unexpected EOF in a field")
    return at
