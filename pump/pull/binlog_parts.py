"""Serves a large binlog in parts: it is read from the log piece by piece and is never completely in memory.

For a prewrite and its commit a pull serves the commit's head and the prewrite's tail (binlog.envelope.merge). So the
parts are the head, followed by the log's bytes unchanged. The record's checksum is computed while it is read. If the
record is damaged, DamagedRecord is raised before the last part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
from binlog.envelope import merge

from pump.errors import DamagedRecord
from pump.index.keys import FLAG_DAMAGED, FLAG_DDL, FLAG_GENERAL, Complete
from pump.log.file import LogFile
from pump.log.record import HEADER_BYTES, RECORD_MAGIC, Pointer, unpack_header
from pump.log.value_log import ValueLog


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
    is damaged."""
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
        found = google_crc32c.extend(found, data)
        if held:
            yield held
        held = data[max(0, complete.tail_at - at) :]
    if found != crc:
        raise DamagedRecord(str(file.path), complete.offset, "checksum mismatch")
    if held:
        yield held
