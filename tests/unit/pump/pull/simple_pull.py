"""PullRange in its simplest form: every record read alone, every message made by protobuf. What the pump's own must
equal byte for byte, errors included."""

from __future__ import annotations

from collections.abc import Iterator

from binlog.envelope import merge
from binlog.errors import PurgedPosition
from binlog.pb import pump_ext_pb2 as pb

from pump.errors import DamagedRecord
from pump.index.keys import FLAG_DAMAGED, FLAG_FAKE, FLAG_GENERAL, FLAG_SKIPPED, Complete, decode_complete, key_ts
from pump.index.leveldb import Index
from pump.log.record import HEADER_BYTES, Pointer, check_record
from pump.log.value_log import ValueLog
from pump.pull import is_large, parts_of

Binlog = tuple[int, Complete]


def simple_messages(
    index: Index, log: ValueLog, after_ts: int, until_ts: int, *, bytes_max: int, entries_max: int, part_bytes_max: int
) -> Iterator[bytes]:
    """Serialized PullRangeResp messages, without the one that ends a stream."""
    if after_ts < index.purged_ts():
        raise PurgedPosition.of(after_ts, index.purged_ts())
    chunk: list[Binlog] = []
    for key, value in index.completes(after_ts, until_ts):
        complete = decode_complete(value)
        if complete.flags & FLAG_FAKE:
            continue
        chunk.append((key_ts(key), complete))
        if sum(found.length for _, found in chunk) >= bytes_max or len(chunk) >= entries_max:
            yield from _messages(log, chunk, part_bytes_max)
            chunk = []
    if chunk:
        yield from _messages(log, chunk, part_bytes_max)


def _messages(log: ValueLog, chunk: list[Binlog], part_bytes_max: int) -> Iterator[bytes]:
    """A large binlog stands between the messages of those before and behind it."""
    run: list[Binlog] = []
    for commit_ts, complete in chunk:
        if not is_large(complete, part_bytes_max):
            run.append((commit_ts, complete))
            continue
        yield from _whole(log, run)
        run = []
        yield from _parts(log, commit_ts, complete, part_bytes_max)
    yield from _whole(log, run)


def _whole(log: ValueLog, run: list[Binlog]) -> Iterator[bytes]:
    """One message; if a binlog is damaged, one with those before it, and then the error."""
    payloads: list[bytes] = []
    damaged = None
    for commit_ts, complete in run:
        try:
            payloads.append(_payload(log, commit_ts, complete))
        except DamagedRecord as error:
            damaged = error
            break
    if payloads:
        found = pb.PullRangeResp(payloads=payloads, last_ts=run[len(payloads) - 1][0])
        yield found.SerializeToString()
    if damaged is not None:
        raise damaged


def _parts(log: ValueLog, commit_ts: int, complete: Complete, size: int) -> Iterator[bytes]:
    try:
        for part in parts_of(log, commit_ts, complete, size):
            found = pb.PullRangeResp(
                payloads=[part.data], last_ts=commit_ts, whole_bytes=part.whole_bytes, part_offset=part.offset
            )
            yield found.SerializeToString()
    except DamagedRecord as error:
        raise error.of_binlog(commit_ts) from error


def _payload(log: ValueLog, commit_ts: int, complete: Complete) -> bytes:
    start_ts, fid, offset, length, tail_at, _, _, flags, head = complete
    if flags & FLAG_SKIPPED:
        return head
    file = log.file(fid)
    path = str(file.path)
    try:
        if flags & FLAG_DAMAGED:
            raise DamagedRecord(path, offset, f"the prewrite of start_ts {start_ts} is lost in it")
        data = file.read(offset, HEADER_BYTES + length)
        prewrite = check_record(data, 0, length=length, place=path, offset=offset)
        if flags & FLAG_GENERAL:
            return merge(prewrite, log.read(Pointer.decode(head)))
        return head + prewrite[tail_at:] if tail_at else prewrite
    except DamagedRecord as error:
        raise error.of_binlog(commit_ts) from error
