"""Serves pulls: complete binlogs in commit order, read from the log in large windows.

A pull that reaches a damaged record yields every binlog before it, and then fails with DamagedRecord; it never ends
without an error there. A pull from a purged position fails with PurgedPosition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from binlog.envelope import merge
from binlog.errors import PurgedPosition

from pump.errors import DamagedRecord
from pump.index.keys import FLAG_DAMAGED, FLAG_GENERAL, FLAG_SKIPPED, Complete, decode_complete, decode_start_ts, key_ts
from pump.index.leveldb import Index
from pump.log.record import HEADER_BYTES, Pointer, check_record
from pump.log.value_log import ValueLog
from pump.metrics import storage_metrics
from pump.pull.binlog_parts import BinlogPart, is_large, parts_of
from pump.pull.plain_binlogs import WINDOW_BYTES_MAX, Entries, Entry, chunks_of, plain_payloads, windows

ENTRIES_MAX = 8192


def pull_bytes(bytes_max: int) -> int:
    """Return the bytes of memory that a pull needs with chunks of `bytes_max`: one chunk that is being sent, one that
    is read ahead, and a window of the log."""
    return 2 * bytes_max + WINDOW_BYTES_MAX


class Served(NamedTuple):
    """One binlog as a client receives it."""

    commit_ts: int
    start_ts: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """At least one binlog as a client receives it, ascending by commit_ts. `pairs`: the index entries, parallel to
    `payloads`."""

    payloads: list[bytes]
    pairs: Sequence[Entry]

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Served]:
        for payload, (key, value) in zip(self.payloads, self.pairs, strict=True):
            yield Served(key_ts(key), decode_start_ts(value), payload)

    @property
    def last_ts(self) -> int:
        """The commit_ts of the last binlog."""
        return key_ts(self.pairs[-1][0])


class Reader:
    """Reads binlogs from index and log. Stateless, safe for use by several threads. A chunk has at most `entries_max`
    binlogs."""

    def __init__(self, index: Index, log: ValueLog, *, entries_max: int = ENTRIES_MAX) -> None:
        self._index = index
        self._log = log
        self._entries_max = entries_max

    def check_position(self, after_ts: int) -> None:
        """Raise PurgedPosition if binlogs after `after_ts` may have been removed. A client that wants the remaining
        binlogs begins at the purge point, which the Watermark call returns."""
        purged_ts = self._index.purged_ts()
        if after_ts < purged_ts:
            raise PurgedPosition.of(after_ts, purged_ts)

    def pull(
        self, after_ts: int, until_ts: int, *, bytes_max: int, fakes: bool, part_bytes_max: int = 0
    ) -> Iterator[Chunk | BinlogPart]:
        """Yield the binlogs of (after_ts, until_ts] in chunks of about `bytes_max` bytes, ascending.

        `until_ts` must be resolved before the first step. `fakes`: whether fake binlogs are included.
        `part_bytes_max`: a larger binlog is yielded in parts of at most this many bytes; 0: no parts, every binlog is
        in a chunk. Raises DamagedRecord, PurgedPosition."""
        entries = self._index.completes(after_ts, until_ts)
        # Check after the iterator was made. The iterator sees the index of that moment, and the purge point is stored
        # before anything is removed.
        self.check_position(after_ts)
        for chunk in chunks_of(entries, bytes_max=bytes_max, entries_max=self._entries_max, fakes=fakes):
            try:
                payloads = self._plain(chunk, part_bytes_max)
                if payloads is not None:
                    yield Chunk(payloads, chunk.pairs)
                    continue
                for run in _runs(chunk.pairs, part_bytes_max):
                    commit_ts, complete = _decode(run[0])
                    if is_large(complete, part_bytes_max):
                        yield from self._parts(commit_ts, complete, part_bytes_max)
                    else:
                        yield from self._until_damage(run)
            except DamagedRecord as error:
                self.check_position(after_ts)  # the record may have been removed meanwhile, which is not damage
                (storage_metrics.ERROR_PREWRITE if error.prewrite_lost else storage_metrics.ERROR_READ).inc()
                raise

    def _plain(self, chunk: Entries, part_bytes_max: int) -> list[bytes] | None:
        """Read the payloads of a chunk in the quick way. Return None if that is not possible; the caller then reads the
        chunk record by record, which reports what is wrong."""
        if not chunk.plain or 0 < part_bytes_max < chunk.largest:
            return None
        payloads = plain_payloads(self._log, chunk)
        if payloads is not None and 0 < part_bytes_max < max(map(len, payloads)):
            return None  # a large head
        return payloads

    def _parts(self, commit_ts: int, complete: Complete, part_bytes_max: int) -> Iterator[BinlogPart]:
        try:
            yield from parts_of(self._log, commit_ts, complete, part_bytes_max)
        except DamagedRecord as error:
            raise error.of_binlog(commit_ts) from error

    def _until_damage(self, run: Sequence[Entry]) -> Iterator[Chunk]:
        """Yield the binlogs of `run` as one chunk. If a record is damaged, yield the binlogs with smaller commit_ts,
        then raise DamagedRecord for the first damaged one."""
        try:
            payloads = self._read(run)
        except DamagedRecord:  # not always of the first in commit order, as windows are read in the log's order
            payloads = []
            try:
                for pair in run:
                    payloads += self._read([pair])
            except DamagedRecord:
                if payloads:
                    yield Chunk(payloads, run[: len(payloads)])
                raise
        yield Chunk(payloads, run)

    def _read(self, pairs: Sequence[Entry]) -> list[bytes]:
        """Read binlogs of any kind record by record. Raises DamagedRecord with the place and the cause."""
        binlogs = [_decode(pair) for pair in pairs]
        payloads = {commit_ts: complete.head for commit_ts, complete in binlogs if complete.flags & FLAG_SKIPPED}
        stored = [binlog for binlog in binlogs if binlog[0] not in payloads]
        for window in windows([(c.fid, c.offset, c.length, c.tail_at, c.flags) for _, c in stored]):
            self._read_window([stored[number] for number in window], payloads)
        return [payloads[commit_ts] for commit_ts, _ in binlogs]

    def _read_window(self, window: Sequence[tuple[int, Complete]], out: dict[int, bytes]) -> None:
        """Read a window of the log with one read, check every record in it, and put the binlogs into `out`."""
        _, first = window[0]
        begin = first.offset
        last = window[-1][1]
        file = self._log.file(first.fid)
        data = file.read(begin, last.offset - begin + HEADER_BYTES + last.length)
        for commit_ts, complete in window:
            try:
                if complete.flags & FLAG_DAMAGED:
                    lost = f"the prewrite of start_ts {complete.start_ts} is lost in it"
                    raise DamagedRecord(str(file.path), complete.offset, lost, prewrite_lost=True)
                at, length = complete.offset - begin, complete.length
                payload = check_record(data, at, length=length, place=str(file.path), offset=complete.offset)
                if complete.flags & FLAG_GENERAL:
                    out[commit_ts] = merge(payload, self._log.read(Pointer.decode(complete.head)))
                else:
                    out[commit_ts] = complete.head + payload[complete.tail_at :] if complete.tail_at else payload
            except DamagedRecord as error:
                raise error.of_binlog(commit_ts) from error


def _decode(pair: Entry) -> tuple[int, Complete]:
    return key_ts(pair[0]), decode_complete(pair[1])


def _runs(pairs: Sequence[Entry], part_bytes_max: int) -> Iterator[Sequence[Entry]]:
    """Split a chunk so that each large binlog is in a run of its own."""
    for large, run in groupby(pairs, lambda pair: is_large(decode_complete(pair[1]), part_bytes_max)):
        if large:
            yield from ([pair] for pair in run)
        else:
            yield list(run)
