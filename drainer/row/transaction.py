"""Where the rows lie in a served binlog. A transaction of one row, as TiDB writes it, is read in place; any other by the
general readers. This is the drainer's hottest code.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from binlog import envelope
from binlog.errors import DecodeError
from binlog.tidb import mutation
from binlog.tidb.varint import decode_uvarint

from drainer.plan import Kind

# tag 1, tp, tag 2, nine bytes of start_ts, tag 3, nine bytes of commit_ts, tag 4, length of the key: every TSO since
# 1971 has nine bytes, every key of TiDB less than 128.
_HEAD = Struct("<BBBQBBQBBB")
_HEAD_BYTES = _HEAD.size
_TAIL = b"\x38\x00\x40\x00"  # no DDL job
_MORE = 0x8080808080808080
INSERTED, UPDATED, DELETED = 0x12, 0x1A, 0x32  # protobuf tags of a TableMutation's rows
# How the mutation of a single row ends: the one entry of its `sequence`.
_SINGLE = {INSERTED: b"\x38\x00", UPDATED: b"\x38\x01", DELETED: b"\x38\x04"}
_KINDS = {mutation.INSERT: Kind.INSERT, mutation.UPDATE: Kind.UPDATE, mutation.DELETE: Kind.DELETE}
KIND_OF_TAG = {INSERTED: Kind.INSERT, UPDATED: Kind.UPDATE, DELETED: Kind.DELETE}


class Scanned(NamedTuple):
    """One served binlog. `tag` INSERTED, UPDATED or DELETED: it is one row, payload[at:end]. `tag` 0: its rows, any
    number, are in the PrewriteValue payload[at:end], read them with `rows`. Sorts into upstream's order."""

    commit_ts: int
    payload: bytes
    tag: int
    schema_version: int
    table_id: int
    at: int
    end: int


def scan(payload: bytes) -> Scanned:
    """DecodeError when the payload is no binlog."""
    if len(payload) > _HEAD_BYTES:
        tag1, tp, tag2, start, first, tag3, commit, last, tag4, size = _HEAD.unpack_from(payload)
        usual = tag1 == 8 and tag2 == 16 and tag3 == 24 and tag4 == 34 and start & commit & _MORE == _MORE
        if usual and tp < 128 and first < 128 and last < 128 and size < 128:
            commit ^= _MORE
            commit = (commit & 0x007F007F007F007F) | ((commit & 0x7F007F007F007F00) >> 1)
            commit = (commit & 0x00003FFF00003FFF) | ((commit & 0x3FFF00003FFF0000) >> 2)
            commit = (commit & 0x0FFFFFFF) | ((commit & 0x0FFFFFFF00000000) >> 4) | (last << 56)
            try:
                found = _single(payload, _HEAD_BYTES + size, commit)
            except (IndexError, DecodeError):
                found = None
            if found is not None:
                return found
    whole = envelope.scan(payload)
    if whole.ddl_job_id:
        return Scanned(whole.commit_ts, payload, 0, 0, 0, 0, 0)
    return Scanned(whole.commit_ts, payload, 0, whole.schema_version, 0, whole.value_at, whole.value_end)


def _single(b: bytes, at: int, commit_ts: int) -> Scanned | None:
    """The one row of a transaction whose PrewriteValue's tag is at `at`; None for every other shape."""
    if b[at] != 0x2A:
        return None
    size = b[at + 1]
    at += 2
    if size > 127:
        size, at = decode_uvarint(b, at - 1)
    end = at + size
    if b[at] != 8 or b[end:] != _TAIL:
        return None
    version = b[at + 1]
    at += 2
    if version > 127:
        version, at = decode_uvarint(b, at - 1)
    if b[at] != 0x12:
        return None
    size = b[at + 1]
    at += 2
    if size > 127:
        size, at = decode_uvarint(b, at - 1)
    if at + size != end or b[at] != 8:
        return None
    table_id = b[at + 1]
    at += 2
    if table_id > 127:
        table_id, at = decode_uvarint(b, at - 1)
    tag = b[at]
    size = b[at + 1]
    at += 2
    if size > 127:
        size, at = decode_uvarint(b, at - 1)
    stop = at + size
    if stop + 2 != end or b[stop:end] != _SINGLE.get(tag):
        return None
    return Scanned(commit_ts, b, tag, version, table_id, at, stop)


def start_of(payload: bytes) -> object:
    """Equal for two binlogs of one transaction, whose commit_ts is known to be equal."""
    if payload[2:3] == b"\x10" and payload[12:13] == b"\x18":
        return payload[3:12]
    return envelope.scan(payload).start_ts


def rows(found: Scanned) -> Iterator[tuple[int, int, Kind, bytes]]:
    """(schema_version, table_id, kind, row) of a transaction in its order (W-02): table by table, rows by `sequence`.

    DecodeError naming the commit_ts where the PrewriteValue is damaged.
    """
    if found.tag:
        row = found.payload[found.at : found.end]
        yield found.schema_version, found.table_id, KIND_OF_TAG[found.tag], row
        return
    if found.at == found.end:
        return
    try:
        prewrite = mutation.parse_prewrite(found.payload[found.at : found.end])
    except DecodeError as err:
        what = f"binlog of commit_ts {found.commit_ts}: {err.what}"
        raise DecodeError(what, offset=err.offset, detail=err.detail) from None
    version = prewrite.schema_version
    for table_id, kind, row in prewrite.rows():
        yield version, table_id, _KINDS[kind], row
