"""Reads, writes and merges the scalars of a serialized Binlog (pb/binlog.proto) without protobuf objects.

Pumps and drainers run this code for every binlog. A Binlog from TiDB has its fields in ascending order, all its scalars
present (`W-01`), and TSOs of nine varint bytes. This form is read with one struct and a few slices. Every other form
that protobuf allows (any order, repeated and unknown fields, missing scalars, longer varints) is read by slower code
with the same result. Only DecodeError is raised.

Rows are not decoded: in field 5, only schema_version is read. Positions are offsets into one buffer; `end` is that of
the current message.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from binlog.errors import DecodeError
from binlog.tidb.varint import UINT64_MAX, encode_uvarint

WHAT = "binlog"
FIELDS_MAX = 32  # a Binlog has nine; a field may have two bytes, and costs its reader a microsecond
_GROUP, _END_GROUP = 3, 4  # wire types
I64_SIGN = 1 << 63


def varint(data: bytes, at: int, end: int | None = None) -> tuple[int, int]:
    """Read a varint of at most ten bytes: (value, offset after it). Bits above 64 are dropped."""
    value = shift = 0
    limit = len(data) if end is None else end
    start = at
    while at < limit:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & UINT64_MAX, at
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


class BinlogType(IntEnum):
    """Values of `tp`. 3 and 4 are obsolete."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2
    PRE_DDL = 3
    POST_DDL = 4


class Envelope(NamedTuple):
    """The result of `scan`. Timestamps are TSOs. A pair of offsets is (0, 0) if the field is absent.

    `body_offset`: the offset after the three leading scalars and the writer's id, where field 4 or a later field
    starts. It is 0 if the fields are not in canonical order or a scalar is missing. `schema_version` is 0 without field
    5. `writer_at`: the offset of the WRITER_BYTES of the writer's id, or 0 if the binlog names no writer.
    """

    tp: int
    start_ts: int
    commit_ts: int
    ddl_job_id: int
    ddl_schema_state: int
    schema_version: int
    body_offset: int
    key_at: int
    key_end: int
    value_at: int
    value_end: int
    query_at: int
    query_end: int
    writer_at: int = 0

    @property
    def is_fake(self) -> bool:
        """Whether this is a fake binlog, which carries no data and only advances the pump's position (`P-FAKE-01`)."""
        return self.start_ts == self.commit_ts and self.start_ts > 0


# Our writers add their id to a prewrite in field 100, which the original's programs skip (docs/formats.md). The field
# is placed between the three leading scalars and field 4. A merged binlog begins with the commit's bytes, so it does
# not contain the field.
WRITER_FIELD = 100
WRITER_BYTES = 16
_WRITER_TAG = b"\xa2\x06\x10"  # field 100, bytes, sixteen of them

_HEAD = Struct("<BBBQBB")  # tag 1, tp, tag 2, eight bytes of start_ts, its ninth, tag 3
_TSO = Struct("<QB")
_MORE = 0x8080808080808080  # the continuation bits of eight varint bytes


def _packed(eight: int, ninth: int) -> int:
    """Return the value of a nine-byte varint. Three steps join the 7-bit groups of all eight bytes in parallel."""
    eight ^= _MORE
    eight = (eight & 0x007F007F007F007F) | ((eight & 0x7F007F007F007F00) >> 1)
    eight = (eight & 0x00003FFF00003FFF) | ((eight & 0x3FFF00003FFF0000) >> 2)
    return (eight & 0x0FFFFFFF) | ((eight & 0x0FFFFFFF00000000) >> 4) | (ninth << 56)


def scan(payload: bytes) -> Envelope:
    """Read a Binlog's scalars and the offsets of its bytes fields. An empty payload is all zero (`W-03`)."""
    if len(payload) >= 18:
        tag1, tp, tag2, eight, ninth, tag3 = _HEAD.unpack_from(payload)
        if tag1 == 8 and tp < 128 and tag2 == 16 and eight & _MORE == _MORE and ninth < 128 and tag3 == 24:
            if payload[13] == 0:
                found = _scan_body(payload, 14, tp, _packed(eight, ninth), 0)
            elif len(payload) >= 26:
                commit, last = _TSO.unpack_from(payload, 13)
                if commit & _MORE != _MORE or last >= 128:
                    return _scan_any(payload)
                found = _scan_body(payload, 22, tp, _packed(eight, ninth), _packed(commit, last))
            else:
                return _scan_any(payload)
            if found is not None:
                return found
    return _scan_any(payload)


def _scan_body(payload: bytes, at: int, tp: int, start_ts: int, commit_ts: int) -> Envelope | None:
    """Read fields 4 to 8 in canonical order. Return None for any other form, which `_scan_any` then reads."""
    key_at = key_end = value_at = value_end = query_at = query_end = version = writer_at = 0
    try:
        tag = payload[at]
        if tag == 0xA2:
            if payload[at : at + 3] != _WRITER_TAG:
                return None
            writer_at = at + 3
            at = writer_at + WRITER_BYTES
            tag = payload[at]
        body = at
        if tag == 0x22:
            size = payload[at + 1]
            key_at = at + 2
            if size >= 128:
                size, key_at = varint(payload, at + 1)
            at = key_end = key_at + size
            tag = payload[at]
        if tag == 0x2A:
            size = payload[at + 1]
            value_at = at + 2
            if size >= 128:
                size, value_at = varint(payload, at + 1)
            at = value_end = value_at + size
            tag = payload[at]
            version = _schema_version(payload, value_at, value_end)
        if tag == 0x32:
            size, query_at = varint(payload, at + 1)
            at = query_end = query_at + size
            tag = payload[at]
        if tag != 0x38:
            return None
        job = payload[at + 1]
        at += 2
        if job >= 128:
            job, at = varint(payload, at - 1)
        if payload[at] != 0x40 or at + 2 != len(payload) or payload[at + 1] >= 128:
            return None
        state = payload[at + 1]
    except (IndexError, DecodeError):
        return None
    if job & I64_SIGN:
        job -= 1 << 64
    return Envelope(
        tp, start_ts, commit_ts, job, state, version, body, key_at, key_end, value_at, value_end, query_at, query_end,
        writer_at,
    )  # fmt: skip


def _schema_version(payload: bytes, at: int, end: int) -> int:
    """Return PrewriteValue.schema_version (field 1) between two offsets, 0 if absent. Rows are skipped."""
    if end > len(payload):
        raise DecodeError(WHAT, offset=len(payload), detail="unexpected EOF in prewrite_value")
    if end - at >= 3 and payload[at] == 0x08:
        value, after = varint(payload, at + 1, end)
        if after < end and payload[after] == 0x12:
            return signed(value)  # rows follow; looking for a second field 1 after them would mean to walk all of them
    version = 0
    for number, wire, _, value_at, after in fields(payload, at, end):
        if number == 1 and wire == 0:
            version = signed(varint(payload, value_at, after)[0])
            if after < end and payload[after] == 0x12:
                return version
    return version


_NAMES = {
    1: "tp",
    2: "start_ts",
    3: "commit_ts",
    4: "prewrite_key",
    5: "prewrite_value",
    6: "ddl_query",
    7: "ddl_job_id",
    8: "ddl_schema_state",
}


def _scan_any(payload: bytes) -> Envelope:
    """`scan` for every valid form of at most FIELDS_MAX fields. As in protobuf, the last of a repeated field counts."""
    scalars = {1: 0, 2: 0, 3: 0, 7: 0, 8: 0}
    spans = {4: (0, 0), 5: (0, 0), 6: (0, 0)}
    ascending, before, body, seen, writer_at = True, 0, 0, 0, 0
    for number, wire, field_at, value_at, end in fields(payload, 0, len(payload)):
        if number == WRITER_FIELD and wire == 2:
            size = end - value_at
            ascending = ascending and before == 3 and size == WRITER_BYTES and not writer_at
            writer_at = value_at if size == WRITER_BYTES else 0
            continue
        ascending = ascending and number > before and number <= 8
        before = number
        seen |= 1 << number if number <= 8 else 0
        if body == 0 and number > 3:
            body = field_at
        if number in scalars:
            _expect(field_at, number, wire, 0)
            value, _ = varint(payload, value_at, end)
            scalars[number] = signed32(value) if number in (1, 8) else signed(value)
        elif number in spans:
            _expect(field_at, number, wire, 2)
            spans[number] = (value_at, end)
    canonical = ascending and seen == 0b110001110 | (seen & 0b001110000)
    return Envelope(
        scalars[1],
        scalars[2],
        scalars[3],
        scalars[7],
        scalars[8],
        _schema_version(payload, *spans[5]),
        body if canonical else 0,
        *spans[4],
        *spans[5],
        *spans[6],
        writer_at,
    )


def writer_of(payload: bytes, found: Envelope) -> bytes:
    """Return the id of the writer that a prewrite names, or b"". `found`: the result of `scan` for this payload."""
    return bytes(payload[found.writer_at : found.writer_at + WRITER_BYTES]) if found.writer_at else b""


def _expect(at: int, number: int, wire: int, wanted: int) -> None:
    if wire != wanted:
        detail = f"{_NAMES[number]} has wire type {wire} instead of {wanted}"
        raise DecodeError(WHAT, offset=at, detail=detail)


def encode_varint(value: int) -> bytes:
    """Encode a protobuf varint. A negative int64 needs ten bytes."""
    return encode_uvarint(value & UINT64_MAX)


def encode_binlog(
    *,
    tp: int,
    start_ts: int,
    commit_ts: int = 0,
    prewrite_key: bytes | None = None,
    prewrite_value: bytes | None = None,
    ddl_query: bytes | None = None,
    ddl_job_id: int = 0,
    ddl_schema_state: int = 0,
    writer: bytes | None = None,
) -> bytes:
    """Encode a Binlog byte for byte as TiDB does: scalars even if they are 0, bytes unless they are None (`W-01`).

    `writer`: the WRITER_BYTES of the id of one of our own writers. TiDB's binlogs have none.
    """
    parts = [b"\x08", encode_varint(tp), b"\x10", encode_varint(start_ts), b"\x18", encode_varint(commit_ts)]
    if writer:
        assert len(writer) == WRITER_BYTES, f"a writer's id has {WRITER_BYTES} bytes, not {len(writer)}"
        parts += (_WRITER_TAG, writer)
    for field_tag, value in ((b"\x22", prewrite_key), (b"\x2a", prewrite_value), (b"\x32", ddl_query)):
        if value is not None:
            parts += (field_tag, encode_varint(len(value)), value)
    parts += (b"\x38", encode_varint(ddl_job_id), b"\x40", encode_varint(ddl_schema_state))
    return b"".join(parts)


def encode_fake(ts: int) -> bytes:
    """Encode a fake binlog (`P-FAKE-01`, `X-03`)."""
    return encode_binlog(tp=BinlogType.ROLLBACK, start_ts=ts, commit_ts=ts)


def _optional(payload: bytes, at: int, end: int) -> bytes | None:
    return payload[at:end] if at else None


def merge(prewrite: bytes, commit: bytes) -> bytes:
    """Return the binlog that a pump serves for a prewrite and its commit (`P-PULL-02` as corrected by `X-01`).

    It has the commit's tp, commit_ts and prewrite_key, and the prewrite's start_ts, prewrite_value, ddl_query,
    ddl_job_id and ddl_schema_state. For two canonical binlogs, it is the head of the commit and the tail of the
    prewrite. Raises DecodeError if one cannot be read, or if they belong to different transactions.
    """
    p, c = scan(prewrite), scan(commit)
    if p.start_ts != c.start_ts:
        detail = f"a commit of start_ts {c.start_ts} cannot be merged with the prewrite of {p.start_ts}"
        raise DecodeError(WHAT, offset=0, detail=detail)
    if p.body_offset and c.body_offset:
        return commit[: c.key_end or c.body_offset] + prewrite[p.key_end or p.body_offset :]
    return encode_binlog(
        tp=c.tp,
        start_ts=p.start_ts,
        commit_ts=c.commit_ts,
        prewrite_key=_optional(commit, c.key_at, c.key_end),
        prewrite_value=_optional(prewrite, p.value_at, p.value_end),
        ddl_query=_optional(prewrite, p.query_at, p.query_end),
        ddl_job_id=p.ddl_job_id,
        ddl_schema_state=p.ddl_schema_state,
    )
