"""Serves pulls: complete binlogs in commit order, read from the log in large windows. Plans where a batch ends.

A pull that reaches a damaged record yields every binlog before it, and then fails with DamagedRecord; it never ends
without an error there. A pull from a purged position fails with PurgedPosition.

The quick way to read a chunk is for plain binlogs: each consists of a head in the index and the rest of one record;
nothing is merged and nothing is damaged. The records of a chunk are close together, about in the order of their
commits, so one read usually returns them all. Other binlogs are read record by record. Magic, length and checksum of
each record are checked in both ways. A large binlog is served in parts: it is never completely in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from binlog.envelope import merge
from binlog.errors import PurgedPosition
from binlog.pb.pump_ext_pb2 import WatermarkReq, WatermarkResp
from google_crc32c import extend
from google_crc32c import value as crc32c

from pump import metrics
from pump.errors import DamagedRecord
from pump.index.keys import (
    COMPLETE_BYTES,
    FLAG_DAMAGED,
    FLAG_DDL,
    FLAG_FAKE,
    FLAG_GENERAL,
    FLAG_SKIPPED,
    Complete,
    decode_complete,
    decode_start_ts,
    key_ts,
    unpack_planned,
    unpack_record_offset,
)
from pump.index.leveldb import Index
from pump.log.record import HEADER_BYTES, RECORD_MAGIC, Pointer, check_record, unpack_header
from pump.log.value_log import LogFile, ValueLog

ENTRIES_MAX = 8192
WINDOW_GAP_BYTES_MAX = 64 << 10
WINDOW_BYTES_MAX = 8 << 20
SPREAD_MAX = 4  # one read may return this many times the bytes that are needed
SPLITS = 4
SAMPLES_MAX = 256  # at this number every second sample is dropped
SAMPLE_BYTES = 16 << 10

NOT_PLAIN = FLAG_DAMAGED | FLAG_GENERAL | FLAG_SKIPPED

Entry = tuple[bytes, bytes]  # a `cm:` key and its value
RecordOffset = tuple[int, int, int, int, int]  # fid, offset, length, tail_at, flags
Split = tuple[int, int, int]  # up to a ts, the batch holds a number of binlogs and their bytes


def plan_batch(entries: Iterable[tuple[bytes, bytes]], resolved_ts: int, limits: WatermarkReq) -> WatermarkResp:
    """Return the batch that begins with `entries`: raw `cm:` pairs, ascending, up to `resolved_ts`; as fields of the
    answer to a watermark call, of which the caller sets the others. It is planned from index entries alone.

    Fake binlogs do not count. The first binlog is in the batch even if it alone exceeds the limit of bytes, so that
    every batch makes progress. `limits`: those of pb/pump_ext.proto; 0: no limit. The bytes are not exact if the batch
    holds a binlog that a pull merges field by field, because the index does not know the length of such a binlog.
    """
    size = count = 0
    last = b""  # the last key
    bytes_max = limits.batch_bytes_max or 1 << 62
    count_max = limits.batch_count_max or 1 << 62
    large_bytes = limits.large_bytes_min or 1 << 62
    by_schema, known_version = limits.stop_at_schema, limits.schema_version
    general = 0
    samples: list[Split] = []
    next_sample = step = SAMPLE_BYTES

    def ended(
        end_ts: int, stop: WatermarkResp.Stop, stop_ts: int = 0, version: int = 0, stop_bytes: int = 0
    ) -> WatermarkResp:
        splits = _splits(samples, size)
        return WatermarkResp(
            batch_end_ts=end_ts,
            batch_bytes=size,
            batch_count=count,
            stop=stop,
            stop_ts=stop_ts,
            stop_schema_version=version,
            stop_bytes=stop_bytes,
            last_ts=key_ts(last) if last else 0,
            bytes_exact=not general & FLAG_GENERAL,
            split_ts=[ts for ts, _, _ in splits],
            split_count=[number for _, number, _ in splits],
            split_bytes=[at for _, _, at in splits],
        )

    for key, value in entries:
        length, tail_at, version, flags = unpack_planned(value)
        if flags & FLAG_FAKE:
            continue
        if by_schema and (flags & FLAG_DDL or version > known_version):
            ts = key_ts(key)
            return ended(ts - 1, WatermarkResp.DDL if flags & FLAG_DDL else WatermarkResp.SCHEMA, ts, version)
        served = length - tail_at + len(value) - COMPLETE_BYTES
        if served > large_bytes and not flags & FLAG_DDL:
            ts = key_ts(key)
            return ended(ts - 1, WatermarkResp.LARGE, ts, version, served)
        grown = size + served
        if count and (grown > bytes_max or count >= count_max):
            return ended(key_ts(last), WatermarkResp.LIMIT, key_ts(key))
        size = grown
        general |= flags
        count += 1
        last = key
        if size >= next_sample:
            samples.append((key_ts(key), count, size))
            if len(samples) == SAMPLES_MAX:
                samples = samples[1::2]
                step *= 2
            next_sample = size + step
    return ended(resolved_ts, WatermarkResp.RESOLVED)


def _splits(samples: list[Split], size: int) -> list[Split]:
    """Return the first sample at or above each quarter of the bytes."""
    splits: list[Split] = []
    wanted = 1
    for sample in samples:
        at = sample[2]
        if wanted < SPLITS and at >= size * wanted // SPLITS and at < size:
            splits.append(sample)
            wanted += 1
            while wanted < SPLITS and at >= size * wanted // SPLITS:
                wanted += 1
    return splits


class BinlogPart(NamedTuple):
    """A part of the binlog of `commit_ts`. `data` begins at byte `offset` of the binlog, which has `whole_bytes`
    bytes."""

    commit_ts: int
    start_ts: int
    data: bytes
    offset: int
    whole_bytes: int


def is_large(complete: Complete, part_bytes_max: int) -> bool:
    """Return whether a binlog is served in parts. A DDL is never split, because its text is needed as one value."""
    return bool(part_bytes_max) and complete.served_bytes > part_bytes_max and not complete.flags & FLAG_DDL


def parts_of(log: ValueLog, commit_ts: int, complete: Complete, part_bytes_max: int) -> Iterator[BinlogPart]:
    """Yield the parts of one binlog, ascending, without gaps. Raises DamagedRecord before the last part if the record
    is damaged.

    For a prewrite and its commit a pull serves the commit's head and the prewrite's tail (binlog.envelope.merge). So
    the parts are the head, followed by the log's bytes unchanged."""
    if complete.flags & FLAG_DAMAGED:
        place = str(log.file(complete.fid).path)
        lost = f"the prewrite of start_ts {complete.start_ts} is lost in it"
        raise DamagedRecord(place, complete.offset, lost, prewrite_lost=True)
    # A general binlog is neither from TiDB nor from our SDK: its commit arrived first, or its fields are unusual.
    if complete.flags & FLAG_GENERAL:
        payload = log.read(Pointer(complete.fid, complete.offset), complete.length)
        pieces = iter([merge(payload, log.read(Pointer.decode(complete.head)))])
        del payload
    else:
        pieces = _pieces(log.file(complete.fid), complete, part_bytes_max)
    whole = None if complete.flags & FLAG_GENERAL else complete.served_bytes
    offset = 0
    for piece in pieces:
        total = len(piece) if whole is None else whole
        view = memoryview(piece)
        for at in range(0, len(piece), part_bytes_max):
            data = bytes(view[at : at + part_bytes_max])
            yield BinlogPart(commit_ts, complete.start_ts, data, offset, total)
            offset += len(data)


def _pieces(file: LogFile, complete: Complete, size: int) -> Iterator[bytes]:
    """Yield the head and the tail in pieces. A piece is held back until the next one has been read, and the last piece
    until the checksum has been verified."""
    header = file.read(complete.offset, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise DamagedRecord(str(file.path), complete.offset, "the file ends before it")
    magic, length, crc = unpack_header(header)
    if (magic, length) != (RECORD_MAGIC, complete.length):
        detail = "wrong magic" if magic != RECORD_MAGIC else f"length {length}, the index says {complete.length}"
        raise DamagedRecord(str(file.path), complete.offset, detail)
    held = complete.head if complete.tail_at else b""
    begin, found = complete.offset + HEADER_BYTES, 0
    for at in range(0, length, size):
        data = file.read(begin + at, min(size, length - at))
        if len(data) != min(size, length - at):
            raise DamagedRecord(str(file.path), complete.offset, "the file ends inside it")
        found = extend(found, data)
        if held:
            yield held
        held = data[max(0, complete.tail_at - at) :]
    if found != crc:
        raise DamagedRecord(str(file.path), complete.offset, "checksum mismatch")
    if held:
        yield held


class Entries(NamedTuple):
    """The index entries of one chunk. `record_offsets` is parallel to `pairs`. `size`, `largest`: bytes of all payloads
    of their records, and of the largest one. `plain`: whether all binlogs are plain."""

    pairs: Sequence[Entry]
    record_offsets: Sequence[RecordOffset]
    size: int
    largest: int
    plain: bool


def chunks_of(entries: Iterable[Entry], *, bytes_max: int, entries_max: int, fakes: bool) -> Iterator[Entries]:
    """Split entries into chunks of about `bytes_max` bytes and at most `entries_max` entries. `fakes` False: leave out
    fake binlogs. No chunk is empty, and the last one ends with the entries, however many fakes are left out in a
    row."""
    unpack = unpack_record_offset
    left_out = 0 if fakes else FLAG_FAKE
    looked_at = left_out | NOT_PLAIN
    pairs: list[Entry] = []
    record_offsets: list[RecordOffset] = []
    size, largest, plain = 0, 0, True
    for pair in entries:
        record_offset = unpack(pair[1])
        if record_offset[4] & looked_at:
            if record_offset[4] & left_out:
                continue
            plain = False
        pairs.append(pair)
        record_offsets.append(record_offset)
        length = record_offset[2]
        size += length
        if length > largest:
            largest = length
        if size >= bytes_max or len(pairs) >= entries_max:
            yield Entries(pairs, record_offsets, size, largest, plain)
            pairs, record_offsets, size, largest, plain = [], [], 0, 0, True
    if pairs:
        yield Entries(pairs, record_offsets, size, largest, plain)


def plain_payloads(log: ValueLog, entries: Entries) -> list[bytes] | None:
    """Return the served payload of each entry, or None if a record is missing or not as the index says; the caller then
    reads record by record."""
    pairs, record_offsets = entries.pairs, entries.record_offsets
    first, last = min(record_offsets), max(record_offsets)
    span = last[1] - first[1] + HEADER_BYTES + last[2]
    wanted = entries.size + HEADER_BYTES * len(pairs)
    if first[0] == last[0] and span <= min(WINDOW_BYTES_MAX, max(SPREAD_MAX * wanted, WINDOW_GAP_BYTES_MAX)):
        return _payloads(log, pairs, record_offsets, first, last)
    payloads = [b""] * len(pairs)
    for window in windows(record_offsets):
        chosen = [record_offsets[number] for number in window]
        found = _payloads(log, [pairs[number] for number in window], chosen, chosen[0], chosen[-1])
        if found is None:
            return None
        for number, payload in zip(window, found, strict=True):
            payloads[number] = payload
    return payloads


def _payloads(
    log: ValueLog,
    pairs: Sequence[Entry],
    record_offsets: Sequence[RecordOffset],
    first: RecordOffset,
    last: RecordOffset,
) -> list[bytes] | None:
    """Return the payloads of records in one file, with one read from `first` to `last`; None as in
    `plain_payloads`."""
    if not log.has(first[0]):
        return None
    begin = first[1]
    data = log.file(first[0]).read(begin, last[1] - begin + HEADER_BYTES + last[2])
    size = len(data)
    before = begin - HEADER_BYTES
    header = unpack_header
    payloads: list[bytes] = []
    add = payloads.append
    for (_, value), (_, offset, length, tail_at, _) in zip(pairs, record_offsets, strict=True):
        at = offset - before
        end = at + length
        if end > size:
            return None
        magic, found, crc = header(data, at - HEADER_BYTES)
        record = data[at:end]
        if magic != RECORD_MAGIC or found != length or crc != crc32c(record):
            return None
        add(value[COMPLETE_BYTES:] + record[tail_at:] if tail_at else record)
    return payloads


def windows(record_offsets: Sequence[RecordOffset]) -> Iterator[list[int]]:
    """Group places that are close together in the log and are read with one read. Yield the indexes into
    `record_offsets`, in the order of the log."""
    window: list[int] = []
    fid = begin = end = -1
    for number in sorted(range(len(record_offsets)), key=lambda number: record_offsets[number][:2]):
        record_offset = record_offsets[number]
        offset = record_offset[1]
        past = offset + HEADER_BYTES + record_offset[2]
        if record_offset[0] != fid or offset - end > WINDOW_GAP_BYTES_MAX or past - begin > WINDOW_BYTES_MAX:
            if window:
                yield window
            window, fid, begin = [], record_offset[0], offset
        window.append(number)
        end = past
    if window:
        yield window


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
                (metrics.ERROR_PREWRITE if error.prewrite_lost else metrics.ERROR_READ).inc()
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
