"""The quick way to read the payloads of a chunk of plain binlogs.

A plain binlog consists of a head in the index and the rest of one record; nothing is merged and nothing is damaged.
Other binlogs are read record by record (pump.pull.ranges). The records of a chunk are close together, about in the
order of their commits, so one read usually returns them all. Magic, length and checksum of each record are checked
here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from google_crc32c import value as crc32c

from pump.index.keys import COMPLETE_BYTES, FLAG_DAMAGED, FLAG_FAKE, FLAG_GENERAL, FLAG_SKIPPED, unpack_record_offset
from pump.log.record import HEADER_BYTES, RECORD_MAGIC, unpack_header
from pump.log.value_log import ValueLog

WINDOW_GAP_BYTES_MAX = 64 << 10
WINDOW_BYTES_MAX = 8 << 20
SPREAD_MAX = 4  # one read may return this many times the bytes that are needed

NOT_PLAIN = FLAG_DAMAGED | FLAG_GENERAL | FLAG_SKIPPED

Entry = tuple[bytes, bytes]  # a `cm:` key and its value
RecordOffset = tuple[int, int, int, int, int]  # fid, offset, length, tail_at, flags


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
