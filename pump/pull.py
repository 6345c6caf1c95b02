"""What a pull serves: complete binlogs in commit order, read from the log in large windows.

A damaged record ends a pull with DamagedRecord, never with silence; a purged position with PurgedPosition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import NamedTuple

from binlog.envelope import merge
from binlog.errors import PurgedPosition
from google_crc32c import value as crc32c

from pump.errors import DamagedRecord
from pump.index import Index
from pump.keys import FLAG_FAKE, FLAG_GENERAL, Complete, decode_complete, key_ts
from pump.log import ValueLog
from pump.record import HEADER_BYTES, RECORD_MAGIC, Pointer, check_record

WINDOW_GAP_BYTES_MAX = 64 << 10
WINDOW_BYTES_MAX = 8 << 20
ENTRIES_MAX = 8192

_HEADER = Struct("<IQI")


class Served(NamedTuple):
    """One binlog as a puller gets it."""

    commit_ts: int
    start_ts: int
    payload: bytes


class Reader:
    """Reads from index and log; used from any thread, holds nothing."""

    def __init__(self, index: Index, log: ValueLog) -> None:
        self._index = index
        self._log = log

    def check_position(self, after_ts: int) -> None:
        """PurgedPosition if binlogs after `after_ts` may be gone; whoever wants what there still is begins at the purge
        point, which Watermark tells."""
        purged_ts = self._index.purged_ts()
        if after_ts < purged_ts:
            raise PurgedPosition(after_ts, purged_ts)

    def pull(self, after_ts: int, until_ts: int, *, bytes_max: int, fakes: bool) -> Iterator[list[Served]]:
        """Chunks of about `bytes_max` bytes, ascending. `until_ts` must have been resolved before the first step."""
        self.check_position(after_ts)
        entries = iter(self._index.completes(after_ts, until_ts))
        while chunk := _take(entries, bytes_max=bytes_max, fakes=fakes):
            try:
                yield self._read(chunk)
            except DamagedRecord:
                self.check_position(after_ts)  # removed meanwhile, which is not damage
                raise

    def _read(self, chunk: list[tuple[int, Complete]]) -> list[Served]:
        payloads: dict[int, bytes] = {}
        for window in _windows(chunk):
            self._read_window(window, payloads)
        return [Served(commit_ts, complete[0], payloads[commit_ts]) for commit_ts, complete in chunk]

    def _read_window(self, window: Sequence[tuple[int, Complete]], out: dict[int, bytes]) -> None:
        """One read; every record in it is checked."""
        _, first = window[0]
        begin = first.offset
        last = window[-1][1]
        file = self._log.file(first.fid)
        data = file.read(begin, last.offset - begin + HEADER_BYTES + last.length)
        for commit_ts, complete in window:
            _, _, offset, length, tail_at, _, _, flags, head = complete
            at = offset - begin
            payload = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
            if len(payload) != length or _HEADER.unpack_from(data, at) != (RECORD_MAGIC, length, crc32c(payload)):
                check_record(data, at, length=length, place=str(file.path), offset=offset)
            if flags & FLAG_GENERAL:
                out[commit_ts] = merge(payload, self._log.read(Pointer.decode(head)))
            else:
                out[commit_ts] = head + payload[tail_at:] if tail_at else payload


def _take(entries: Iterator[tuple[bytes, bytes]], *, bytes_max: int, fakes: bool) -> list[tuple[int, Complete]]:
    """Decoded entries worth `bytes_max`, at least one, at most ENTRIES_MAX."""
    chunk: list[tuple[int, Complete]] = []
    size = 0
    for key, value in islice(entries, ENTRIES_MAX):
        complete = decode_complete(value)
        if complete.flags & FLAG_FAKE and not fakes:
            continue
        chunk.append((key_ts(key), complete))
        size += complete.length
        if size >= bytes_max:
            break
    return chunk


def _windows(chunk: list[tuple[int, Complete]]) -> Iterator[list[tuple[int, Complete]]]:
    """Neighbours in the log that are worth one read together."""
    window: list[tuple[int, Complete]] = []
    fid = begin = end = -1
    for item in sorted(chunk, key=_place):
        complete = item[1]
        offset = complete[2]
        past = offset + HEADER_BYTES + complete[3]
        if complete[1] != fid or offset - end > WINDOW_GAP_BYTES_MAX or past - begin > WINDOW_BYTES_MAX:
            if window:
                yield window
            window, fid, begin = [], complete[1], offset
        window.append(item)
        end = past
    if window:
        yield window


def _place(item: tuple[int, Complete]) -> tuple[int, int]:
    complete = item[1]
    return complete[1], complete[2]
