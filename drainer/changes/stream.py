"""Decode all changes between two DDLs to columns, unfolded, for sinks that need every change.

binlogs ─► scan ─► decode ─► ChangeSegment                                                    (in the driver)
binlogs ─► scan ─► decode ─► slots ─► columns by slot (change_blob.py) ─► sort ─► ChangeSegment   (distributed)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from binlog.errors import DecodeError

from drainer.batch.work import Kind
from drainer.changes.change_blob import PartPacker, joined, ordered, sizes, unpack_blob
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes, ColumnDecoder
from drainer.changes.scan import Rows, Scanned, scan_all
from drainer.changes.vector import Ints
from drainer.row.codec import Codec, Decoder, Name
from drainer.row.transaction import PayloadCollector
from drainer.schema.errors import SchemaError
from drainer.schema.view import SchemaView

# Offsets in a buffer are 32-bit numbers, and a sink's output for one share is several times as large as the share.
SHARE_BYTES_MAX: Final = 64 << 20
# The most bytes of binlogs added in order that are decoded together, for each table and kind in them. Decoding few rows
# takes as long as decoding some thousand, and the arrays of many rows do not stay in the processor's cache (python -m
# bench.columns).
FLUSH_BYTES: Final = 2 << 20
FLUSH_BYTES_MAX: Final = 32 << 20

# (changes, number of slots) → arrays of slots, with an element for each change. A change belongs to the slots that all
# arrays name.
SlotsOf = Callable[[Changes, int], Sequence[Ints]]


def in_order(segment: ChangeSegment) -> Iterator[tuple[int, int]]:
    """Yield (index in `segment.changes`, row in it) of every change, in upstream's order."""
    if not segment.changes:
        return
    of = np.concatenate([np.full(len(one), number) for number, one in enumerate(segment.changes)])
    row = np.concatenate([np.arange(len(one)) for one in segment.changes])
    by_order = np.argsort(np.concatenate([one.order for one in segment.changes]), kind="stable")
    yield from zip(of[by_order].tolist(), row[by_order].tolist(), strict=True)


class StreamDecoder:
    """Decodes rows with one view. Not thread-safe."""

    def __init__(self, view: SchemaView, *, stored_generated: bool = False) -> None:
        """`stored_generated`: images include stored generated columns."""
        self.view = view
        self._stored_generated = stored_generated
        self._columns = ColumnDecoder(view, decoder=self._rows())

    def _rows(self) -> Decoder:
        return Decoder(self.view, stored_generated=self._stored_generated)

    def segment(self, payloads: Sequence[bytes], after_ts: int, until_ts: int) -> ChangeSegment:
        """Return the changes of a segment's binlogs, which may be in any order. Raises the first row's error:
        DecodeError, TableUnknown, UnknownColumn or TableUnverified, naming the table and commit_ts."""
        return self._segment(_scanned(payloads), payloads, after_ts, until_ts)

    def cutter(self, slots: int, slots_of: SlotsOf) -> StreamCutter:
        return StreamCutter(self, slots, slots_of)

    def transaction(self) -> Callable[[bytes, int, int], ChangeSegment]:
        """Return a function for a transaction that is decoded in pieces: (piece, after_ts, until_ts) → its changes,
        whose `sequence` continues from piece to piece."""
        before = 0

        def piece(payload: bytes, after_ts: int, until_ts: int) -> ChangeSegment:
            nonlocal before
            scanned = _scanned([payload])
            rows = replace(scanned.rows, sequence=scanned.rows.sequence + before)
            before += len(rows)
            return self._segment(replace(scanned, rows=rows), [payload], after_ts, until_ts)

        return piece

    def named(self, rows: Rows) -> list[tuple[Name, Changes]]:
        """Decode the changes of all rows that the view does not skip (schema.view.SkipReason), and return them with the
        names of their codecs. Raises as ColumnDecoder.decode, and TableUnverified."""
        found: list[tuple[Name, Changes]] = []
        for group in self._columns.groups(rows):
            for name, codec, some in self._by_codec(group):
                found += ((name, one) for one in self._columns.decode_group(codec, some))
        self.check_verified()
        return found

    def _by_codec(self, group: Rows) -> Iterator[tuple[Name, Codec, Rows]]:
        """Divide the rows of one table and schema_version: if their partition was moved or dropped, their columns show
        which table they belong to."""
        codec, name = self._columns.codec(group), (int(group.table_id[0]), int(group.version[0]))
        if codec is not None:
            yield name, codec, group
        decoder = self._columns.decoder
        numbers = range(len(group)) if codec is None and decoder.relocates(*name) else ()
        chosen: dict[Name, list[int]] = {}
        for at in numbers:
            of = decoder.name_of_row(*name, int(group.commit_ts[at]), Kind(int(group.kind[at])), group.row(at))
            chosen.setdefault(of, []).append(at)
        for of, rows in chosen.items():
            found = decoder.codec_named(of, int(group.commit_ts[rows[0]]))
            if found is not None:
                yield of, found, group.take(np.array(rows, np.int64))

    def codec_named(self, name: Name, commit_ts: int) -> Codec | None:
        return self._columns.decoder.codec_named(name, commit_ts)

    def _segment(self, scanned: Scanned, payloads: Sequence[bytes], after_ts: int, until_ts: int) -> ChangeSegment:
        """`payloads`: the binlogs of the rows, from which the first invalid row is found."""
        found = [one for _, one in self._named(scanned.rows, payloads)]
        return _segment_of(found, scanned.source_bytes, after_ts, until_ts)

    def _named(self, rows: Rows, payloads: Sequence[bytes]) -> list[tuple[Name, Changes]]:
        try:
            return self.named(rows)
        except (DecodeError, SchemaError) as error:
            self._raise_first(payloads, error)
            raise

    def check_verified(self) -> None:
        """Raises TableUnverified."""
        self._columns.decoder.check_verified()

    def _raise_first(self, payloads: Sequence[bytes], error: Exception) -> None:
        """Decode row by row, and raise the error of the first row that has one."""
        decoder = self._rows()
        try:
            for _ in decoder.rows(payloads, lambda codec: codec.asking_for(range(len(codec.column_types)))):
                pass
            decoder.check_verified()
        except (DecodeError, SchemaError) as first:
            raise first from error


class StreamCutter(PayloadCollector):
    """Collects binlogs and divides their changes for a shuffle, once. Binlogs that are added in order are decoded and
    divided after every few MiB and not kept: their memory is then reused and stays in the processor's cache."""

    def __init__(self, decoder: StreamDecoder, slots: int, slots_of: SlotsOf) -> None:
        super().__init__(decoder.view.marks, FLUSH_BYTES)
        self._decoder = decoder
        self._slots_of: Callable[[Changes], Sequence[Ints]] = lambda changes: slots_of(changes, slots)
        self._packer = PartPacker()
        self._source_bytes = 0

    def cut(self) -> dict[int, bytes]:
        """Return slot → blob for `merge`, for slots that have changes. A change that belongs to several slots is in
        each of them. Duplicates are removed by `merge` at the latest (rule 19). Raises the first row's error, as
        `StreamDecoder.segment`."""
        if self._payloads:
            self._flush()
        return self._packer.blobs(self._source_bytes)

    def _flush(self) -> None:
        scanned = _scanned(self._payloads)
        found = self._decoder._named(scanned.rows, self._payloads)
        for name, changes in found:
            self._packer.add(name, changes, self._slots_of(changes))
        self._source_bytes += scanned.source_bytes
        self._payloads, self._bytes = [], 0
        self._flush_bytes = min(FLUSH_BYTES_MAX, FLUSH_BYTES * max(1, len(found)))


def merge(decoder: StreamDecoder, blobs: Iterable[bytes], after_ts: int, until_ts: int) -> ChangeSegment:
    """Return one slot's changes from the blobs of all parts of a batch, in any order. Raises BlobError, and SchemaError
    for a schema that does not have their tables."""
    parts = [unpack_blob(blob, decoder.codec_named) for blob in blobs]
    size = sum(source_bytes for _, source_bytes in parts)
    groups: dict[tuple[Codec, Kind], list[Changes]] = {}
    for one in ordered([one for changes, _ in parts for one in changes]):
        groups.setdefault((one.codec, one.kind), []).append(one)
    shares = _shares([one for group in groups.values() for one in group])
    found = [joined(group, begin, end) for begin, end in shares for group in groups.values()]
    decoder.check_verified()
    return _segment_of([one for one in found if one is not None], size, after_ts, until_ts)


def _segment_of(found: Sequence[Changes], source_bytes: int, after_ts: int, until_ts: int) -> ChangeSegment:
    commits = 0
    if found:
        in_order = np.sort(np.concatenate([one.commit_ts for one in found]))  # np.unique takes several times as long
        commits = 1 + int(np.count_nonzero(in_order[1:] != in_order[:-1]))
    return ChangeSegment(after_ts, until_ts, tuple(found), sum(map(len, found)), source_bytes, commits)


def _scanned(payloads: Sequence[bytes]) -> Scanned:
    try:
        return scan_all(payloads)
    except DecodeError as error:
        for payload in payloads:
            try:
                scan_all([payload])
            except DecodeError as first:  # of the first torn one
                raise first from error
        raise


def _shares(parts: Sequence[Changes]) -> Iterator[tuple[int, int]]:
    """Yield ranges of numbers, each of at most SHARE_BYTES_MAX of images, or of one larger row."""
    if not parts:
        return
    # The size of each change, in upstream's order. A change belongs to the share in which its first byte is; where the
    # number of the share changes, a range begins.
    order = np.concatenate([one.order for one in parts])
    kept = order >= 0
    in_order = np.empty(int(kept.sum()), np.int64)
    in_order[order[kept]] = np.concatenate(list(map(sizes, parts)))[kept]
    share = (np.cumsum(in_order) - in_order) // SHARE_BYTES_MAX
    begins = np.flatnonzero(np.diff(share, prepend=-1)).tolist()
    yield from zip(begins, [*begins[1:], len(share)], strict=True)
