"""What a pull serves: complete binlogs in commit order, read from the log in large windows.

A damaged record ends a pull with DamagedRecord, never with silence; a purged position with PurgedPosition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from struct import Struct
from typing import NamedTuple

from binlog.envelope import merge
from binlog.errors import PurgedPosition
from google_crc32c import value as crc32c

from pump.errors import DamagedRecord
from pump.index import Index
from pump.keys import FLAG_DAMAGED, FLAG_FAKE, FLAG_GENERAL, FLAG_PASSED, Complete, decode_complete, key_ts
from pump.log import ValueLog
from pump.parts import Part, is_large, parts_of
from pump.record import HEADER_BYTES, RECORD_MAGIC, Pointer, check_record

WINDOW_GAP_BYTES_MAX = 64 << 10
WINDOW_BYTES_MAX = 8 << 20
ENTRIES_MAX = 8192

_HEADER = Struct("<IQI")


def pull_bytes(bytes_max: int) -> int:
    """What a pull of chunks of this size holds: one that is sent, one that is read ahead, and a window of the log."""
    return 2 * bytes_max + WINDOW_BYTES_MAX


class Served(NamedTuple):
    """One binlog as a puller gets it."""

    commit_ts: int
    start_ts: int
    payload: bytes


class Reader:
    """Reads from index and log; used from any thread, holds nothing. A chunk has at most `entries_max` binlogs."""

    def __init__(self, index: Index, log: ValueLog, *, entries_max: int = ENTRIES_MAX) -> None:
        self._index = index
        self._log = log
        self._entries_max = entries_max

    def check_position(self, after_ts: int) -> None:
        """PurgedPosition if binlogs after `after_ts` may be gone; whoever wants what there still is begins at the purge
        point, which Watermark tells."""
        purged_ts = self._index.purged_ts()
        if after_ts < purged_ts:
            raise PurgedPosition(after_ts, purged_ts)

    def pull(
        self, after_ts: int, until_ts: int, *, bytes_max: int, fakes: bool, part_bytes_max: int = 0
    ) -> Iterator[list[Served] | Part]:
        """Chunks of about `bytes_max` bytes, ascending. `until_ts` must have been resolved before the first step.

        `part_bytes_max`: a larger binlog is given in parts of so many bytes; 0: whole, in a chunk like any other."""
        entries = self._index.completes(after_ts, until_ts)
        # After the iterator was made, which sees what was there then: the purge point is stored before anything goes.
        self.check_position(after_ts)
        for chunk in _chunks(entries, bytes_max=bytes_max, entries_max=self._entries_max, fakes=fakes):
            try:
                for run in _runs(chunk, part_bytes_max):
                    if is_large(run[0][1], part_bytes_max):
                        yield from self._parts(*run[0], part_bytes_max)
                    else:
                        yield self._read(run)
            except DamagedRecord:
                self.check_position(after_ts)  # removed meanwhile, which is not damage
                raise

    def _parts(self, commit_ts: int, complete: Complete, part_bytes_max: int) -> Iterator[Part]:
        try:
            yield from parts_of(self._log, commit_ts, complete, part_bytes_max)
        except DamagedRecord as error:
            raise error.of_binlog(commit_ts) from error

    def _read(self, chunk: list[tuple[int, Complete]]) -> list[Served]:
        payloads = {commit_ts: complete.head for commit_ts, complete in chunk if complete[7] & FLAG_PASSED}
        for window in _windows(chunk if not payloads else [item for item in chunk if item[0] not in payloads]):
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
            start_ts, _, offset, length, tail_at, _, _, flags, head = complete
            try:
                if flags & FLAG_DAMAGED:
                    raise DamagedRecord(str(file.path), offset, f"the prewrite of start_ts {start_ts} is lost in it")
                at = offset - begin
                payload = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
                if len(payload) != length or _HEADER.unpack_from(data, at) != (RECORD_MAGIC, length, crc32c(payload)):
                    check_record(data, at, length=length, place=str(file.path), offset=offset)
                if flags & FLAG_GENERAL:
                    out[commit_ts] = merge(payload, self._log.read(Pointer.decode(head)))
                else:
                    out[commit_ts] = head + payload[tail_at:] if tail_at else payload
            except DamagedRecord as error:
                raise error.of_binlog(commit_ts) from error


def _chunks(
    entries: Iterable[tuple[bytes, bytes]], *, bytes_max: int, entries_max: int, fakes: bool
) -> Iterator[list[tuple[int, Complete]]]:
    """All entries, decoded, in chunks worth `bytes_max` of at least one and at most `entries_max`. However many fakes
    are left out in a row, there is no empty chunk, and the end is the end of the entries alone."""
    chunk: list[tuple[int, Complete]] = []
    size = 0
    for key, value in entries:
        complete = decode_complete(value)
        if complete.flags & FLAG_FAKE and not fakes:
            continue
        chunk.append((key_ts(key), complete))
        size += complete.length
        if size >= bytes_max or len(chunk) >= entries_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _runs(chunk: list[tuple[int, Complete]], part_bytes_max: int) -> Iterator[list[tuple[int, Complete]]]:
    """The chunk cut so that a large binlog stands alone."""
    for large, run in groupby(chunk, lambda item: is_large(item[1], part_bytes_max)):
        if large:
            yield from ([item] for item in run)
        else:
            yield list(run)


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
