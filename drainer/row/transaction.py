"""Finds the rows in a served binlog. This code runs once for every binlog, more often than any other of the drainer.

A transaction of one row in TiDB's usual encoding is parsed here. All others are parsed by the general readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias

from binlog import envelope
from binlog.errors import DecodeError
from binlog.tidb import mutation
from binlog.tidb.varint import decode_uvarint

from drainer.batch.work import Kind

# tag 1 and tp | tag 2 | eight bytes of start_ts | its ninth and tag 3 | eight bytes of commit_ts | its ninth and
# tag 4 | length of the key. Every TSO since 1971 has nine bytes; a served binlog is a commit that repeats the key
#
_HEAD = Struct("<HBQHQHB")
_HEAD_BYTES = _HEAD.size
_TAIL = b"\x38\x00\x40\x00"  # no DDL job
_MORE = 0x8080808080808080
INSERTED, UPDATED, DELETED = 0x12, 0x1A, 0x32  # protobuf tags of a TableMutation's rows
# How the mutation of a single row ends: the one entry of its `sequence`.
_SINGLE = {INSERTED: b"\x38\x00", UPDATED: b"\x38\x01", DELETED: b"\x38\x04"}
_KINDS = {mutation.INSERT: Kind.INSERT, mutation.UPDATE: Kind.UPDATE, mutation.DELETE: Kind.DELETE}
KIND_OF_TAG = {INSERTED: Kind.INSERT, UPDATED: Kind.UPDATE, DELETED: Kind.DELETE}


_ROWID = b"\x08\x01\x08"  # column id -1 and the flag of its value, which ends a row without a clustered key
_ROWID_BYTES_MAX = len(_ROWID) + 10

# One served binlog: (commit_ts, payload, tag, schema_version, table_id, at, end). Tag INSERTED, UPDATED or DELETED: it
# is one row, payload[at:end]. Tag 0: its rows, any number, are in the PrewriteValue payload[at:end]: read them with
# `rows`. A plain tuple for speed, because there is one per transaction. Tuples sort into upstream's order.
Scanned: TypeAlias = "tuple[int, bytes, int, int, int, int, int]"


def scan(payload: bytes) -> Scanned:
    """DecodeError when the payload is no binlog."""
    if len(payload) > _HEAD_BYTES:
        tag1, tag2, start, tag3, commit, tag4, size = _HEAD.unpack_from(payload)
        # In order: tp is COMMIT, a varint's last byte and the next tag, twice, and both TSOs go on for eight bytes.
        if (
            tag1 == 0x0108
            and tag2 == 0x10
            and tag3 & 0xFF80 == 0x1800
            and tag4 & 0xFF80 == 0x2200
            and size < 128
            and start & commit & _MORE == _MORE
        ):
            # 7-bit groups moved together in three steps.
            commit = (commit & 0x007F007F007F007F) | ((commit & 0x7F007F007F007F00) >> 1)
            commit = (commit & 0x00003FFF00003FFF) | ((commit & 0x3FFF00003FFF0000) >> 2)
            commit = (commit & 0x0FFFFFFF) | ((commit & 0x0FFFFFFF00000000) >> 4) | ((tag4 & 0x7F) << 56)
            try:
                found = _single(payload, _HEAD_BYTES + size, commit)
            except (IndexError, DecodeError):
                found = None
            if found is not None:
                return found
    whole = envelope.scan(payload)
    if whole.ddl_job_id:
        return whole.commit_ts, payload, 0, 0, 0, 0, 0
    return whole.commit_ts, payload, 0, whole.schema_version, 0, whole.value_at, whole.value_end


def _single(b: bytes, at: int, commit_ts: int) -> Scanned | None:
    """The one row of a transaction whose PrewriteValue's tag is at `at`; None for every other shape.

    Varints of one and two bytes are read in line: a call costs as much as all the rest.
    """
    if b[at] != 0x2A:
        return None
    # prewrite_value: it ends where the fields of no DDL begin, which end the binlog.
    size = b[at + 1]
    at += 2
    if size > 127:
        more = b[at]
        size, at = (size + (more << 7) - 128, at + 1) if more < 128 else decode_uvarint(b, at - 1)
    end = at + size
    if b[at] != 8 or b[end:] != _TAIL:
        return None
    version = b[at + 1]
    at += 2
    if version > 127:
        more = b[at]
        version, at = (version + (more << 7) - 128, at + 1) if more < 128 else decode_uvarint(b, at - 1)
    if b[at] != 0x12:
        return None
    size = b[at + 1]
    at += 2
    if size > 127:
        more = b[at]
        size, at = (size + (more << 7) - 128, at + 1) if more < 128 else decode_uvarint(b, at - 1)
    # Its one mutation reaches to its end.
    if at + size != end or b[at] != 8:
        return None
    table_id = b[at + 1]
    at += 2
    if table_id > 127:
        more = b[at]
        table_id, at = (table_id + (more << 7) - 128, at + 1) if more < 128 else decode_uvarint(b, at - 1)
    # The mutation's one row, and behind it the `sequence` of one entry, of the row's kind.
    tag = b[at]
    size = b[at + 1]
    at += 2
    if size > 127:
        more = b[at]
        size, at = (size + (more << 7) - 128, at + 1) if more < 128 else decode_uvarint(b, at - 1)
    stop = at + size
    if stop + 2 != end or b[stop:end] != _SINGLE.get(tag):
        return None
    return commit_ts, b, tag, version, table_id, at, stop


def start_ts_of(payload: bytes) -> int:
    return envelope.scan(payload).start_ts


def prewrite_of(commit_ts: int, value: bytes) -> mutation.Prewrite:
    """A PrewriteValue taken apart. DecodeError naming the commit_ts where it is damaged."""
    try:
        return mutation.parse_prewrite(value)
    except DecodeError as err:
        what = f"binlog of commit_ts {commit_ts}: {err.what}"
        raise DecodeError(what, offset=err.offset, detail=err.detail) from None


def may_repeat(found: mutation.Mutation) -> bool:
    """Whether a table's rows may be in the transaction twice (see `rows`): they have a rowid, and not all are
    inserts."""
    return any(some and _ROWID in some[0][-_ROWID_BYTES_MAX:] for some in (found.updated, found.deleted))


def rows(found: Scanned) -> Iterator[tuple[int, int, Kind, bytes]]:
    """Yield (schema_version, table_id, kind, row) in the order of the transaction (W-02): table by table, rows by
    `sequence`.

    While REORGANIZE PARTITION runs, TiDB writes a row to the old and to the new partition, and the binlog has both
    changes. So an update or a delete is skipped if the change before it in the table is identical, rowid included. In
    tables with a key, folding removes such duplicates.

    Raises DecodeError, naming the commit_ts, if the PrewriteValue is damaged.
    """
    commit_ts, payload, tag, version, table_id, at, end = found
    if tag:
        yield version, table_id, KIND_OF_TAG[tag], payload[at:end]
        return
    if at == end:
        return
    prewrite = prewrite_of(commit_ts, payload[at:end])
    version = prewrite.schema_version
    last, of = b"", 0  # rowids are counted in each table: another one's row may look the same
    for number, kind, row in prewrite.rows():
        if row == last and number == of and kind != mutation.INSERT and _ROWID in row[-_ROWID_BYTES_MAX:]:
            continue
        last, of = row, number
        yield version, number, _KINDS[kind], row
