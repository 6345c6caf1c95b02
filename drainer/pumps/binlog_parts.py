"""Binlogs as the messages of a pull: small ones together, a large one in parts of a few MiB, which are joined again.

No value in the JVM may exceed a few MiB, so a pull yields parts, whether the pump served parts (see PullRangeResp in
pump_ext.proto) or sent the binlog complete, as Go pumps do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from binlog.errors import DecodeError
from binlog.pb import parsed
from binlog.pb import pump_ext_pb2 as ext
from binlog.tidb.varint import decode_uvarint

MESSAGE_BYTES_MAX = 1 << 20  # of a message with several binlogs
PART_BYTES_MAX = 4 << 20

_START_TS = 2
_VALUE_TAG, _QUERY_TAG = 5 << 3 | 2, 6 << 3 | 2  # of a Binlog: prewrite_value, ddl_query
_VERSION_TAG = 1 << 3  # of a PrewriteValue
_BYTES = 2


def cut_into_parts(
    payload: bytes | memoryview, commit_ts: int, part_bytes_max: int = PART_BYTES_MAX
) -> Iterator[ext.PullRangeResp]:
    """Yield the PullRangeResp messages of a binlog, with at most `part_bytes_max` payload bytes each."""
    view = memoryview(payload)
    for at in range(0, len(view), part_bytes_max):
        part = bytes(view[at : at + part_bytes_max])
        yield ext.PullRangeResp(payloads=[part], last_ts=commit_ts, whole_bytes=len(view), part_offset=at)


def messages_of(binlogs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield serialized PullRangeResp with these binlogs, each with its commit_ts before it, ascending."""
    message, size = ext.PullRangeResp(), 0
    for commit_ts, payload in binlogs:
        is_large = len(payload) > PART_BYTES_MAX
        if not is_large:
            message.payloads.append(payload)
            message.last_ts = commit_ts
            size += len(payload)
        if message.payloads and (is_large or size >= MESSAGE_BYTES_MAX):
            yield message.SerializeToString()
            message, size = ext.PullRangeResp(), 0
        if is_large:
            for part in cut_into_parts(payload, commit_ts):
                yield part.SerializeToString()
    if message.payloads:
        yield message.SerializeToString()


class PartJoiner:
    """Joins the messages of a pull into binlogs, in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> list[bytes]:
        """Add a message; return the binlogs that it completes. Raises DecodeError if a part is out of sequence."""
        found = parsed(ext.PullRangeResp, message)
        return self.join(found, list(found.payloads))

    def join(self, found: ext.PullRangeResp, payloads: list[bytes]) -> list[bytes]:
        """Do the same as `add`, for a message that was parsed, and its payloads."""
        check_continues(found, self._size)
        if not found.whole_bytes:
            return payloads
        (part,) = payloads
        self._parts.append(part)
        self._size += len(part)
        if self._size < found.whole_bytes:
            return []
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [whole]

    def end(self) -> None:
        """End the pull. Raises DecodeError if a binlog is incomplete."""
        if self._size:
            raise _incomplete(self._size)


def _incomplete(size: int) -> DecodeError:
    return DecodeError("parts of a binlog", offset=size, detail="the remaining parts are missing")


def check_continues(found: ext.PullRangeResp, offset: int) -> None:
    """Raise DecodeError unless this message of a pull continues the `offset` bytes of an incomplete binlog that were
    received before."""
    if found.whole_bytes:
        check_part(found, offset)
    elif offset:
        raise _incomplete(offset)


def check_part(found: ext.PullRangeResp, offset: int) -> None:
    """Raise DecodeError unless this part continues the `offset` bytes of its binlog that were received."""
    size = sum(map(len, found.payloads))
    if len(found.payloads) != 1 or found.part_offset != offset or not 0 < size <= found.whole_bytes - offset:
        raise DecodeError(
            f"parts of the binlog of commit_ts {found.last_ts}",
            offset=offset,
            detail=f"a part of {size} bytes at {found.part_offset} of {found.whole_bytes} is out of sequence",
        )


def leading_schema_version(first_part: bytes) -> int | None:
    """Return the schema_version from the first part of a binlog with rows; None for a DDL."""
    at = 0
    while at < len(first_part):
        tag, at = decode_uvarint(first_part, at)
        size, at = decode_uvarint(first_part, at)
        if tag == _QUERY_TAG:
            return None
        if tag == _VALUE_TAG:
            tag, at = decode_uvarint(first_part, at)
            return decode_uvarint(first_part, at)[0] if tag == _VERSION_TAG else 0
        if tag & 7 == _BYTES:
            at += size
    return None


def leading_start_ts(first_part: bytes) -> int:
    """Return the start_ts from the first part of a binlog; 0 if it is not among the leading fields."""
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
