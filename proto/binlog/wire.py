"""Reads protobuf's wire format without protobuf objects: varints, and the fields of a message.

Positions are offsets into one buffer. `end` is the end of the current message. Only DecodeError is raised.
"""

from __future__ import annotations

from collections.abc import Iterator

from binlog.errors import DecodeError

WHAT = "binlog"
FIELDS_MAX = 32  # a Binlog has nine; a field may have two bytes, and costs its reader a microsecond
_GROUP, _END_GROUP = 3, 4  # wire types
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


def fields(data: bytes, at: int, end: int, *, count_max: int = FIELDS_MAX) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields of a message: (number, wire type, offset of the tag, offset of the value, offset after it). The
    value of a bytes field is its content. A group is one field.

    Raises DecodeError for more than `count_max` fields, including those in groups.
    """
    groups: list[tuple[int, int]] = []  # numbers and offsets of the groups that are open
    for _ in range(count_max):
        if at >= end and not groups:
            return
        tag_at = at
        key, value_at = varint(data, at, end)
        number, wire = (key >> 3) & 0xFFFFFFFF, key & 7
        if number == 0 or number >= 1 << 29:
            raise DecodeError(WHAT, offset=at, detail=f"illegal field number {number}")
        if wire == _GROUP:
            groups.append((number, tag_at))
            at = value_at
            continue
        if wire == _END_GROUP and groups:
            at = value_at
            opened, tag_at = groups.pop()
            if opened != number:
                raise DecodeError(WHAT, offset=at, detail=f"end of group {number} without its start")
            wire = _GROUP
        else:
            value_at, at = _value(data, value_at, end, number, wire)
        if not groups:
            yield number, wire, tag_at, value_at, at
    if at < end or groups:
        raise DecodeError(WHAT, offset=at, detail=f"more than {count_max} fields")


def _value(data: bytes, at: int, end: int, number: int, wire: int) -> tuple[int, int]:
    """Return the offset of a field's value and the offset after it."""
    if wire == 0:
        after = varint(data, at, end)[1]
    elif wire == 1:
        after = at + 8
    elif wire == 2:
        size, at = varint(data, at, end)
        after = at + size
    elif wire == 5:
        after = at + 4
    else:
        raise DecodeError(WHAT, offset=at, detail=f"field {number} has wire type {wire}")
    if after > end:
        raise DecodeError(WHAT, offset=end, detail="unexpected EOF in a field")
    return at, after
