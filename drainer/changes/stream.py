"""Decode all changes between two DDLs to columns, unfolded, for sinks that need every change.

binlogs ─► scan ─► decode ─► ChangeSegment                                                    (in the driver)
binlogs ─► scan ─► decode ─► slots ─► columns by slot (blobs) ─► sort ─► ChangeSegment             (distributed)

The task that writes a slot need not decode its changes again. Blob: `<BIIQ` of CHANGES_BLOB, 0, the number of streams,
and the bytes of binlogs in the part (in one of the part's blobs, 0 in the others). Then, for each codec and kind: the
length of its stream (`<I`) and the stream, an Arrow IPC stream with one batch for each run of binlogs that were decoded
together. A batch has the columns _STAMPS, then those of the old image and of the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes, ColumnDecoder, Columns
from drainer.changes.scan import Rows, Scanned, scan_all
from drainer.changes.slot_blob import BlobError
from drainer.changes.slots import Pieces, ipc_batches, pack_streams, unpack_streams
from drainer.changes.texts import offsets_of
from drainer.changes.vector import Ints
from drainer.row.codec import Codec, Decoder, Name
from drainer.row.transaction import PayloadCollector
from drainer.schema.errors import SchemaError
from drainer.schema.view import SchemaView

CHANGES_BLOB: Final = 35  # slots.py counts from 16
_HEAD: Final = Struct("<BIIQ")
_STAMPS: Final = (("commit_ts", pa.uint64()), ("start_ts", pa.uint64()), ("sequence", pa.int64()))
_PER_CHANGE: Final = (*(name for name, _ in _STAMPS), "order")
_NUMBER_BYTES: Final = 8

CodecNamed = Callable[[Name, int], Codec | None]  # Decoder.codec_named


@dataclass(slots=True)
class _Stream:
    """Batches of one schema, ready to be written. `rows`: the number of rows in all of them."""

    schema: Any
    batches: list[Any] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: Any) -> None:
        self.batches.append(batch.serialize())
        self.rows += len(batch)


class PartPacker:
    """Divides the changes of a part among slots, and packs the changes of each slot into its blob."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[tuple[Name, Kind], _Stream]] = {}

    def add(self, name: Name, changes: Changes, slots: Sequence[Ints]) -> None:
        """Add changes. Each belongs to the slots that all arrays name for it."""
        rows, ranges = divided(slots)
        batch = _batch(changes if len(ranges) == 1 else changes.take(rows))
        for slot, begin, end in ranges:
            streams = self._streams.setdefault(slot, {})
            of = name, changes.kind
            if of not in streams:
                streams[of] = _Stream(batch.schema)
            streams[of].add(batch.slice(begin, end - begin))

    def blobs(self, source_bytes: int) -> dict[int, bytes]:
        """Return slot → blob, for the slots that have changes."""
        found = {}
        for slot in sorted(self._streams):
            streams = [_packed(of, stream) for of, stream in self._streams[slot].items()]
            found[slot] = pack_streams(_HEAD, CHANGES_BLOB, b"", streams, source_bytes)
            source_bytes = 0
        return found


def _packed(of: tuple[Name, Kind], stream: _Stream) -> Pieces:
    name, kind = of
    meta = {"name": " ".join(map(str, name)), "kind": str(int(kind)), "rows": str(stream.rows)}
    return ipc_batches(stream.schema.with_metadata(meta), stream.batches)


def divided(slots: Sequence[Ints]) -> tuple[Ints, list[tuple[int, int, int]]]:
    """Sort the changes by slot. Return (the indexes of the changes of one slot after another, ascending within a slot;
    for each slot: the slot, and where its indexes begin and end). A change that has the same slot in several arrays
    occurs once in it."""
    first, *others = slots
    if all(np.array_equal(first, other) for other in others):
        # numpy sorts numbers of up to 16 bits without comparing them (radix sort).
        rows = np.argsort(first.astype(np.min_scalar_type(int(first.max(initial=0)))), kind="stable")
        of = first[rows]
    else:
        pairs = np.unique(np.concatenate([slot * len(first) + np.arange(len(first)) for slot in slots]))
        of, rows = np.divmod(pairs, len(first))
    begins = np.flatnonzero(np.diff(of, prepend=-1)).tolist()
    return rows, list(zip(of[begins].tolist(), begins, [*begins, len(of)][1:], strict=True))


def _batch(changes: Changes) -> Any:
    images = [column for image in (changes.old, changes.new) if image is not None for column in image]
    fields = [*_STAMPS, *((str(at), column.type) for at, column in enumerate(images))]
    stamps = [pa.array(changes.commit_ts), pa.array(changes.start_ts), pa.array(changes.sequence)]
    return pa.RecordBatch.from_arrays([*stamps, *images], schema=pa.schema(fields))


def unpack_blob(blob: bytes, codec_named: CodecNamed) -> tuple[list[Changes], int]:
    """Return the changes, whose `order` is not yet known, and the bytes of binlogs as in the head. Raises BlobError,
    and what `codec_named` raises."""
    _, found, (source_bytes,) = unpack_streams(blob, _HEAD, CHANGES_BLOB, lambda stream: _changes(stream, codec_named))
    return [one for some in found for one in some], source_bytes


def _changes(stream: memoryview, codec_named: CodecNamed) -> list[Changes]:
    """Return the changes of each batch. Damaged bytes raise one of the errors that `unpack_streams` converts."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        schema = reader.schema
        batches = list(reader)
    meta = schema.metadata or {}
    if [(field.name, field.type) for field in schema][: len(_STAMPS)] != list(_STAMPS):
        raise ValueError(f"columns {schema.names[: len(_STAMPS)]}")
    kind, rows = Kind(int(meta[b"kind"])), sum(map(len, batches))
    if rows != int(meta[b"rows"]):  # an end mark where a batch should be
        raise ValueError(f"{rows} of {int(meta[b'rows'])} rows")
    name = tuple(map(int, meta[b"name"].split()))
    return [_of_batch(codec_named, name, kind, batch) for batch in batches]


def _of_batch(codec_named: CodecNamed, name: Name, kind: Kind, batch: Any) -> Changes:
    batch.validate(full=True)
    commit_ts, start_ts, sequence = (batch.column(at).to_numpy() for at in range(len(_STAMPS)))
    codec, images = codec_named(name, int(commit_ts.min())), batch.columns[len(_STAMPS) :]
    if codec is None:
        raise BlobError(f"a slot's blob has rows of table {name[0]}, which this schema leaves out")
    types = [column_type.decoded_type for column_type in codec.column_types]
    if [column.type for column in images] != types * (2 if kind is Kind.UPDATE else 1):
        raise BlobError(f"a slot's blob is damaged: rows of table {name[0]} have other columns than its own")
    old = None if kind is Kind.INSERT else tuple(images[: len(types)])
    new = None if kind is Kind.DELETE else tuple(images[-len(types) :])
    return Changes(codec, kind, commit_ts, start_ts, sequence, np.zeros(len(commit_ts), np.int64), old, new)


def sizes(changes: Changes) -> Ints:
    """Return the bytes of each change's images."""
    found = np.zeros(len(changes), np.int64)
    for column in (*(changes.old or ()), *(changes.new or ())):
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            found += np.diff(offsets_of(column))
        else:
            found += _NUMBER_BYTES
    return found


def joined(parts: Sequence[Changes], begin: int, end: int) -> Changes | None:
    """Return the changes of one codec and kind whose `order` is in [begin, end), in order; None if there are none."""
    chosen = [np.flatnonzero((one.order >= begin) & (one.order < end)) for one in parts]
    pairs = zip(parts, chosen, strict=True)
    some = [one if len(rows) == len(one) else one.take(rows) for one, rows in pairs if len(rows)]
    if not some:
        return None
    whole = some[0]
    if len(some) > 1:
        stamps: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in some]) for name in _PER_CHANGE}
        old, new = _concatenated([one.old for one in some]), _concatenated([one.new for one in some])
        whole = replace(whole, old=old, new=new, **stamps)
    return whole if bool((np.diff(whole.order) > 0).all()) else whole.take(np.argsort(whole.order))


def _concatenated(images: Sequence[Columns | None]) -> Columns | None:
    columns = [image for image in images if image is not None]
    return tuple(map(pa.concat_arrays, zip(*columns, strict=True))) if columns else None


def ordered(parts: Sequence[Changes]) -> Iterator[Changes]:
    """Yield the parts with the number of each of their changes in upstream's order, among the changes of all, as
    `order`. A duplicate, of a transaction that two pumps hold, gets -1."""
    if not parts:
        return
    commits, starts, sequence = (np.concatenate([getattr(one, name) for one in parts]) for name in _PER_CHANGE[:3])
    by_order = np.lexsort((sequence, starts, commits))
    again = np.zeros(len(by_order), np.bool_)
    if len(by_order) > 1:
        again[1:] = np.all([one[by_order][1:] == one[by_order][:-1] for one in (commits, starts, sequence)], axis=0)
    # by_order leads from a number to a change; `order` is its inverse, where duplicates take no number.
    order = np.full(len(by_order), -1, np.int64)
    order[by_order[~again]] = np.arange(len(by_order) - int(again.sum()))
    begin = 0  # the numbers are in the order of the concatenated parts again: each takes its own of them
    for one in parts:
        yield replace(one, order=order[begin : begin + len(one)])
        begin += len(one)


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
