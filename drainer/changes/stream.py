"""Decode all changes between two DDLs to columns, unfolded, for sinks that need every change.

binlogs ─► scan ─► decode ─► ChangeSegment                                                    (in the driver)
binlogs ─► scan ─► decode ─► slots ─► columns by slot (change_blob.py) ─► sort ─► ChangeSegment   (distributed)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError

from drainer.batch.work import Kind
from drainer.changes.change_blob import (
    RAW_SCHEMA,
    Group,
    Name,
    OrderedGroup,
    PartPacker,
    changes_of,
    orders_of,
    unpack_blob,
)
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes, ColumnDecoder
from drainer.changes.scan import Rows, Scanned, scan_all
from drainer.changes.slot_blob import BlobError
from drainer.changes.vector import Buffer, Ints
from drainer.row.codec import Codec
from drainer.row.decode import Decoder
from drainer.row.loopback import PayloadCollector
from drainer.schema.errors import SchemaError
from drainer.schema.view import SchemaView

# Offsets in a buffer are 32-bit numbers, and a sink's output for one share is several times as large as the share.
SHARE_BYTES_MAX: Final = 64 << 20
# The most bytes of binlogs added in order that are decoded together, for each table and kind in them. Decoding few rows
# takes as long as decoding some thousand, and the arrays of many rows do not stay in the processor's cache (python -m
# bench.columns).
FLUSH_BYTES: Final = 2 << 20
FLUSH_BYTES_MAX: Final = 32 << 20
_BETWEEN: Final = b"\xff"  # after a row, so that the end of a row without its last columns is recognized

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

    def builder(self) -> StreamBuilder:
        return StreamBuilder(self)

    def cutter(self, slots: int, slots_of: SlotsOf) -> StreamCutter:
        return StreamCutter(self, slots, slots_of)

    def transaction(self) -> Callable[[bytes, int, int], ChangeSegment]:
        """Return a function for a transaction that is decoded in pieces: (piece, after_ts, until_ts) → its changes,
        whose `sequence` continues from piece to piece."""
        before = 0

        def piece(payload: bytes, after_ts: int, until_ts: int) -> ChangeSegment:
            nonlocal before
            scanned = _scanned([payload])
            count = len(scanned.rows)
            rows = replace(scanned.rows, sequence=scanned.rows.sequence + before)
            before += count
            return self._segment([rows], [payload], scanned.source_bytes, after_ts, until_ts)

        return piece

    def decode(self, rows: Rows) -> list[Changes]:
        """Decode the changes of all rows that the view does not skip (schema.view.SkipReason). Raises as
        ColumnDecoder.decode, and TableUnverified."""
        return [one for _, one in self.named(rows)]

    def named(self, rows: Rows) -> list[tuple[Name | None, Changes]]:
        """Decode as `decode`, and return with the changes the name of their codec; None if each row has its own. Raises
        as `decode`.
        """
        found: list[tuple[Name | None, Changes]] = []
        for group in self._columns.groups(rows):
            codec = self._columns.codec(group)
            if codec is not None:
                name = int(group.table_id[0]), int(group.version[0])
                found += ((name, one) for one in self._columns.decode_group(codec, group))
            elif self._columns.decoder.has_relocated_rows:
                found += ((None, one) for one in self._one_by_one(group))
        self._columns.decoder.check_verified()
        return found

    def codec_named(self, name: Name, commit_ts: int) -> Codec:
        """Return the codec of this name. Raises BlobError if the view has none for it."""
        found = self._columns.decoder.codec(*name, commit_ts)
        if found is None:
            raise BlobError(f"a slot's blob has rows of table {name[0]}, which this schema leaves out")
        return found

    def _one_by_one(self, group: Rows) -> Iterator[Changes]:
        """Decode rows whose partition was moved or dropped; their columns show which table they belong to."""
        chosen: dict[int, tuple[Codec, list[int]]] = {}
        for number in range(len(group)):
            codec = self._columns.decoder.codec_of_row(
                int(group.table_id[number]),
                int(group.version[number]),
                int(group.commit_ts[number]),
                Kind(int(group.kind[number])),
                group.row(number),
            )
            if codec is not None:
                chosen.setdefault(id(codec), (codec, []))[1].append(number)
        for codec, numbers in chosen.values():
            yield from self._columns.decode_group(codec, group.take(np.array(numbers, np.int64)))

    def _segment(
        self, shares: Iterable[Rows], payloads: Sequence[bytes], source_bytes: int, after_ts: int, until_ts: int
    ) -> ChangeSegment:
        """`payloads`: the binlogs of the rows, from which the first invalid row is found."""
        found = [one for rows in shares for _, one in self._named(rows, payloads)]
        return _segment_of(found, source_bytes, after_ts, until_ts)

    def _named(self, rows: Rows, payloads: Sequence[bytes]) -> list[tuple[Name | None, Changes]]:
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


class StreamBuilder(PayloadCollector):
    """Collects binlogs in any order, then returns their changes once."""

    def __init__(self, decoder: StreamDecoder) -> None:
        super().__init__(decoder.view.marks)
        self._decoder = decoder

    def finish(self, after_ts: int, until_ts: int) -> ChangeSegment:
        """Return the changes. Raises the first row's error: DecodeError, TableUnknown, UnknownColumn or
        TableUnverified, naming the table and commit_ts."""
        scanned = _scanned(self._payloads)
        return self._decoder._segment([scanned.rows], self._payloads, scanned.source_bytes, after_ts, until_ts)


class StreamCutter(PayloadCollector):
    """Collects binlogs and divides their changes for a shuffle, once. Binlogs that are added in order are decoded and
    divided after every few MiB and not kept: their memory is then reused and stays in the processor's cache."""

    def __init__(self, decoder: StreamDecoder, slots: int, slots_of: SlotsOf) -> None:
        super().__init__(decoder.view.marks)
        self._decoder = decoder
        self._slots_of: Callable[[Changes], Sequence[Ints]] = lambda changes: slots_of(changes, slots)
        self._bytes = 0
        self._flush_bytes = FLUSH_BYTES
        self._packer = PartPacker()
        self._source_bytes = 0

    def add_in_order(self, payloads: Iterable[bytes], size: int) -> None:
        """Add binlogs that follow all that were added before, as one pump serves them, of `size` bytes together. Raises
        as `cut`."""
        self.add_all(payloads)
        self._bytes += size
        if self._bytes >= self._flush_bytes and self._payloads:
            self._flush()

    def cut(self) -> dict[int, bytes]:
        """Return slot → blob for `merge`, for slots that have changes. A change that belongs to several slots is in
        each of them. Duplicates are removed by `merge` at the latest (rule 19). Raises the first row's error, as
        `StreamBuilder.finish`."""
        if self._payloads:
            self._flush()
        return self._packer.blobs(self._source_bytes)

    def _flush(self) -> None:
        scanned = _scanned(self._payloads)
        found = self._decoder._named(scanned.rows, self._payloads)
        for name, changes in found:
            if name is not None:
                self._packer.add(name, changes, self._slots_of(changes))
        undecoded = [(changes.order, self._slots_of(changes)) for name, changes in found if name is None]
        if undecoded:
            self._packer.add_undecoded(scanned.rows, undecoded)
        self._source_bytes += scanned.source_bytes
        self._payloads, self._bytes = [], 0
        self._flush_bytes = min(FLUSH_BYTES_MAX, FLUSH_BYTES * max(1, len(found)))


def merge(decoder: StreamDecoder, blobs: Iterable[bytes], after_ts: int, until_ts: int) -> ChangeSegment:
    """Return one slot's changes from the blobs of all parts of a batch, in any order. Raises BlobError, and for rows
    that are not decoded yet the errors of `StreamDecoder.decode`."""
    parts = [unpack_blob(blob) for blob in blobs]
    size = sum(part.source_bytes for part in parts)
    groups = [group for part in parts for group in part.groups]
    raws = [part.raw for part in parts if part.raw is not None]
    if not groups and not raws:
        return ChangeSegment(after_ts, until_ts, (), 0, size, 0)
    stamps = [(group.commit_ts, group.start_ts, group.sequence) for group in groups]
    orders = [*orders_of([*stamps, *(tuple(raw.column(at).to_numpy() for at in range(3)) for raw in raws)])]
    named: dict[tuple[Name, Kind], list[OrderedGroup]] = {}
    for group, order in zip(groups, orders, strict=False):
        named.setdefault((group.name, group.kind), []).append(OrderedGroup(group, order))
    found = []
    for begin, end in _shares(groups, raws, orders):
        for (name, _), ordered in named.items():
            codec = decoder.codec_named(name, int(ordered[0].group.commit_ts.min()))
            changes = changes_of(codec, ordered, begin, end)
            found += [changes] if changes is not None else []
        for raw, order in zip(raws, orders[len(groups) :], strict=True):
            found += decoder.decode(_raw_rows(raw, order, begin, end))
    decoder.check_verified()
    return _segment_of(found, size, after_ts, until_ts)


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


def _raw_rows(raw: Any, order: Ints, begin: int, end: int) -> Rows:
    """Return the undecoded rows with numbers in [begin, end)."""
    chosen = np.flatnonzero((order >= begin) & (order < end))
    chosen = chosen[np.argsort(order[chosen])]
    data = raw.column("row").take(pa.array(chosen)).to_pylist()
    sizes = np.fromiter(map(len, data), np.int64, len(data))
    at = np.cumsum(sizes + 1) - sizes - 1
    numbers = [raw.column(name).to_numpy()[chosen] for name in RAW_SCHEMA.names[:6]]
    commits, starts, sequence, version, table_id, kind = numbers
    return Rows(
        Buffer(data, _BETWEEN), commits, starts, sequence, version, table_id, kind.astype(np.int64), at, at + sizes,
        order[chosen], order[chosen],
    )  # fmt: skip


def _shares(groups: Sequence[Group], raws: Sequence[Any], orders: Sequence[Ints]) -> Iterator[tuple[int, int]]:
    """Yield ranges of numbers, each of at most SHARE_BYTES_MAX of images, or of one larger row."""
    sizes = [group.sizes() for group in groups]
    sizes += [pc.binary_length(raw.column("row")).to_numpy().astype(np.int64) for raw in raws]
    # The size of each change, in upstream's order. A change belongs to the share in which its first byte is; where the
    # number of the share changes, a range begins.
    order = np.concatenate(orders)
    kept = order >= 0
    in_order = np.empty(int(kept.sum()), np.int64)
    in_order[order[kept]] = np.concatenate(sizes)[kept]
    share = (np.cumsum(in_order) - in_order) // SHARE_BYTES_MAX
    begins = np.flatnonzero(np.diff(share, prepend=-1)).tolist()
    yield from zip(begins, [*begins[1:], len(share)], strict=True)
