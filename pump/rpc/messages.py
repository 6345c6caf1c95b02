"""Decodes and encodes messages that hold binlogs, with as few copies as possible.

Protobuf copies a bytes field when it parses and when it serializes. This is cheap for a usual binlog, but a gigabyte
each time for a transaction of a gigabyte. So large messages are decoded and encoded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from binlog.envelope import FIELDS_MAX, encode_varint, fields, signed, varint
from binlog.errors import BinlogError, DecodeError
from binlog.extension import PAYLOADS_MAX
from binlog.pb import parsed, pump_ext_pb2, pump_pb2
from binlog.rpc.messages import Buffer
from binlog.tidb.varint import Varints

from pump.errors import TooManyItems
from pump.pull import BinlogPart, Chunk

LARGE_BYTES_MIN = 4 << 20

_CLUSTER_ID, _PAYLOAD = 0x08, 0x12  # tags of a WriteBinlogReq
_TYPE, _START_TS = 0x08, 0x10  # tags of a Binlog
_PAYLOADS, _LAST_TS, _WHOLE_BYTES, _PART_OFFSET = b"\x0a", b"\x10", b"\x40", b"\x48"  # tags of a PullRangeResp
_TWO_BYTES_MAX = 1 << 14  # a shorter message's length is a varint of at most two bytes


def parse_write(data: Buffer) -> tuple[int, bytes]:
    """Parse a WriteBinlogReq. Return (cluster id, payload). The payload of a large one is a view of `data`; it may be
    used as bytes but must not be kept longer than the call. Raises DecodeError, TooManyItems."""
    if len(data) > LARGE_BYTES_MIN:
        cluster_id, _, payloads = _take_apart(data, "WriteBinlogReq", payload_field=2)
        return cluster_id, payloads[-1] if payloads else b""
    request = parsed(pump_pb2.WriteBinlogReq, bytes(data))
    return request.clusterID, request.payload


def fast_payloads(cluster_id: int, requests: Sequence[Buffer]) -> list[bytes] | None:
    """Return the payloads of WriteBinlogReqs in the form of the fast path: the id of this cluster, one payload, nothing
    else. Return None if one of them has another form or is large; the caller then uses `parse_write` for each."""
    head = _write_head(cluster_id)
    at = len(head)
    payloads: list[bytes] = []
    for data in requests:
        if data[:at] != head or len(data) - at < 3 or len(data) > _TWO_BYTES_MAX:
            return None
        size, begin = data[at], at + 1
        if size > 127:
            if data[begin] > 127:
                return None
            size = size & 127 | data[begin] << 7
            begin += 1
        if len(data) - begin != size:
            return None
        payloads.append(bytes(data[begin:]))
    return payloads


@lru_cache(maxsize=4)
def _write_head(cluster_id: int) -> bytes:
    return bytes((_CLUSTER_ID,)) + encode_varint(cluster_id) + bytes((_PAYLOAD,))


def parse_batch(data: Buffer) -> tuple[int, int, Sequence[bytes]]:
    """Parse a WriteBatchReq. Return (cluster id, batch id, payloads). In a large one each large payload is a view of
    `data`, as in `parse_write`. Raises DecodeError, TooManyItems."""
    if len(data) > LARGE_BYTES_MIN:
        return _take_apart(data, "WriteBatchReq", payload_field=3)
    request: Any = parsed(pump_ext_pb2.WriteBatchReq, bytes(data))
    _check_count(request.payloads)
    return request.cluster_id, request.batch_id, list(request.payloads)  # a list, as every access makes new bytes


def _check_count(payloads: Sequence[bytes]) -> None:
    if len(payloads) > PAYLOADS_MAX:
        raise TooManyItems("payloads", PAYLOADS_MAX)


def _take_apart(data: Buffer, what: str, *, payload_field: int) -> tuple[int, int, list[bytes]]:
    """Return the fields 1 and 2 if they are numbers, else 0, and every payload. Raises DecodeError, TooManyItems."""
    view: Any = memoryview(data)
    numbers = {1: 0, 2: 0}
    payloads: list[bytes] = []
    try:
        for number, wire, _, begin, end in fields(view, 0, len(data), count_max=PAYLOADS_MAX + FIELDS_MAX):
            if number == payload_field and wire == 2:
                payloads.append(view[begin:end] if end - begin > LARGE_BYTES_MIN else bytes(view[begin:end]))
                _check_count(payloads)
            elif number in numbers and wire == 0:
                numbers[number], _ = varint(view, begin, end)
    except DecodeError as error:
        raise DecodeError(what, offset=error.offset, detail=error.detail) from error
    return numbers[1], numbers[2], payloads


def head_of_write(head: bytes) -> tuple[int, int] | None:
    """Parse the first bytes of a WriteBinlogReq. Return the start_ts and the size in bytes of its binlog; None if there
    are too few bytes or the order of fields is unusual."""
    try:
        if head[0] != _CLUSTER_ID:
            return None
        _, at = varint(head, 1)
        if head[at] != _PAYLOAD:
            return None
        size, at = varint(head, at + 1)
        if head[at] != _TYPE or head[at + 1] > 127 or head[at + 2] != _START_TS:
            return None
        return signed(varint(head, at + 3)[0]), size
    except (DecodeError, IndexError):
        return None


_prefixes = Varints(_PAYLOADS)  # the bytes before a payload in a PullRangeResp, by the payload's length


class Pulled(NamedTuple):
    """A PullRangeResp: its bytes, the number of its binlogs, and the bytes of its binlogs. A binlog in parts counts
    with its first part."""

    data: bytes
    binlogs: int
    size: int


def payload_fields(payloads: Sequence[bytes]) -> bytes:
    """Encode complete binlogs as fields of a PullRangeResp."""
    pieces = [b""] * (2 * len(payloads))
    pieces[::2] = map(_prefixes.__getitem__, map(len, payloads))
    pieces[1::2] = payloads
    return b"".join(pieces)


def last_ts_field(last_ts: int) -> bytes:
    """Encode the field of a PullRangeResp with the commit_ts of its last binlog."""
    return _LAST_TS + encode_varint(last_ts)


def pulled_part(part: BinlogPart) -> Pulled:
    """Encode a PullRangeResp with one part of a large binlog."""
    size = len(part.data)
    pieces = [_prefixes[size], part.data, last_ts_field(part.commit_ts)]
    pieces.append(_WHOLE_BYTES + encode_varint(part.whole_bytes))
    if part.offset:
        pieces.append(_PART_OFFSET + encode_varint(part.offset))
    return Pulled(b"".join(pieces), 0 if part.offset else 1, size)


def entity(start_ts: int, commit_ts: int, parts: Sequence[bytes]) -> bytes:
    """Encode a PullBinlogResp of a payload in parts. The payload is copied once."""
    meta = pump_pb2.Meta(startTs=start_ts, commitTs=commit_ts).SerializeToString()
    size = sum(map(len, parts))
    before = b"\x0a\x00\x12" + encode_varint(size)  # pos, payload
    after = b"\x22" + encode_varint(len(meta)) + meta
    return b"".join((b"\x0a" + encode_varint(len(before) + size + len(after)) + before, *parts, after))


# The messages of a pull by range: the log is read in small chunks and sent in messages of the requested size.
#
# The Python objects of a chunk (index entries and records) take about five times its size. With chunks of READ_BYTES
# they stay in a processor's cache until they are bytes of a message. With chunks of 1 MiB, each of them a message, a
# pull took an eighth more CPU, and even more on a busy machine.
READ_BYTES = 128 << 10


def read_bytes(message_bytes_max: int) -> int:
    """Return the size in bytes of the chunks for messages of `message_bytes_max` bytes."""
    return min(message_bytes_max, READ_BYTES)


def range_messages(pieces: Iterable[Chunk | BinlogPart], *, message_bytes_max: int) -> Iterator[Pulled]:
    """Collect chunks of `read_bytes` into messages of about `message_bytes_max` bytes. A message ends before a large
    binlog, each part of which is a message. If `pieces` raises, for example DamagedRecord, the collected message is
    yielded before the error is raised."""
    chunks_max = message_bytes_max // read_bytes(message_bytes_max)
    gathered: list[bytes] = []  # of the message that is being collected
    binlogs = size = last_ts = 0

    def taken() -> Pulled:
        """Return the message and begin the next one."""
        nonlocal binlogs, size
        found = Pulled(b"".join((*gathered, last_ts_field(last_ts))), binlogs, size)
        gathered.clear()
        binlogs = size = 0
        return found

    try:
        for piece in pieces:
            if isinstance(piece, BinlogPart):
                if gathered:
                    yield taken()
                yield pulled_part(piece)
                continue
            gathered.append(payload_fields(piece.payloads))
            binlogs += len(piece.payloads)
            size += sum(map(len, piece.payloads))
            last_ts = piece.last_ts
            if len(gathered) >= chunks_max or size >= message_bytes_max:
                yield taken()
    except BinlogError:
        if gathered:
            yield taken()
        raise
    if gathered:
        yield taken()
