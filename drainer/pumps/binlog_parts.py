"""A large binlog on its way: cut into messages of a few MiB, and joined again where it must be one value.

Nothing above a few MiB may be one value in the JVM, so whoever pulls gives on parts, whether the pump served them so
(see PullRangeResp in pump_ext.proto) or sent the binlog whole, as pumps of the original do.
"""

from __future__ import annotations

from collections.abc import Iterator

from binlog.errors import DecodeError
from binlog.pb import pump_ext_pb2 as ext
from binlog.tidb.varint import decode_uvarint
from google.protobuf.message import DecodeError as ProtobufError

PART_BYTES_MAX = 4 << 20

_START_TS = 2


def cut_into_parts(
    payload: bytes | memoryview, commit_ts: int, part_bytes_max: int = PART_BYTES_MAX
) -> Iterator[ext.PullRangeResp]:
    """The messages in which a pump of ours would have served it."""
    view = memoryview(payload)
    for at in range(0, len(view), part_bytes_max):
        part = bytes(view[at : at + part_bytes_max])
        yield ext.PullRangeResp(payloads=[part], last_ts=commit_ts, whole_bytes=len(view), part_offset=at)


class PartJoiner:
    """Gives the binlogs of a pull's messages, in order; a large one when its last part has come."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> list[bytes]:
        """The binlogs that are whole now. DecodeError where a part is not the one that must follow."""
        found = parse(message, self._size)
        if not found.whole_bytes:
            return list(found.payloads)
        (part,) = found.payloads
        self._parts.append(part)
        self._size += len(part)
        if self._size < found.whole_bytes:
            return []
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [whole]

    def end(self) -> None:
        """Nothing more comes. DecodeError where a binlog is not whole."""
        if self._size:
            raise _torn(self._size)


def _torn(size: int) -> DecodeError:
    return DecodeError("parts of a binlog", offset=size, detail="the rest of it did not come")


def parse(message: bytes, offset: int) -> ext.PullRangeResp:
    """A message of a pull. `offset` bytes of a binlog that is not whole yet came before it: DecodeError unless it goes
    on with that one."""
    try:
        found = ext.PullRangeResp.FromString(message)
    except ProtobufError as error:
        raise DecodeError("PullRangeResp", offset=0, detail=str(error)) from error
    if found.whole_bytes:
        _check_part(found, offset)
    elif offset:
        raise _torn(offset)
    return found


def _check_part(found: ext.PullRangeResp, offset: int) -> None:
    size = sum(map(len, found.payloads))
    if len(found.payloads) != 1 or found.part_offset != offset or not 0 < size <= found.whole_bytes - offset:
        raise DecodeError(
            f"parts of the binlog of commit_ts {found.last_ts}",
            offset=offset,
            detail=f"a part of {size} bytes at {found.part_offset} of {found.whole_bytes} does not belong here",
        )


def leading_start_ts(first_part: bytes) -> int:
    """The start_ts of a binlog that has only begun to come; 0 where it is not among the leading scalars."""
    at = 0
    try:
        for _ in range(3):
            tag, at = decode_uvarint(first_part, at)
            if tag & 7:
                break
            value, at = decode_uvarint(first_part, at)
            if tag >> 3 == _START_TS:
                return value
    except DecodeError:
        pass
    return 0
