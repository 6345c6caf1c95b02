"""All changes between two DDLs, unfolded, as columns: for sinks that need every change.

    binlogs ─► scan ─► decode ─► ChangeSegment                                         (inline)
    binlogs ─► scan ─► decode ─► slots ─► raw rows by slot ─► sort ─► decode ─► ChangeSegment   (spread)

Rows are shuffled as they are in the binlog, which is smaller than their columns, and decoding is cheap. Blob of a slot:
CHANGES_BLOB (one byte), the number of rows in it, the bytes of binlogs in the part (`<QQ`, the latter in one of the
part's blobs, 0 in the others), then an Arrow IPC stream of _SCHEMA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError

from drainer.batch.work import Kind
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes, ColumnDecoder
from drainer.changes.scan import Rows, Scanned, scan_all
from drainer.changes.stream_blob import ipc_stream
from drainer.changes.vector import Buffer, Ints
from drainer.order.errors import BlobError
from drainer.row.codec import Codec
from drainer.row.decode import Decoder
from drainer.schema.errors import SchemaError
from drainer.schema.view import SchemaView

CHANGES_BLOB: Final = 32  # order/blob.py counts from 1, slots.py from 16
# Offsets in a buffer are 32-bit numbers, and a sink's output for one share is several times as large.
SHARE_BYTES_MAX: Final = 64 << 20
_HEAD: Final = Struct("<BQQ")
_BETWEEN: Final = b"\xff"  # after a row, so that the end of a row without its last columns is recognized
_SCHEMA: Final = pa.schema(
    [
        ("commit_ts", pa.uint64()),
        ("start_ts", pa.uint64()),
        ("sequence", pa.int64()),
        ("version", pa.int64()),
        ("table_id", pa.int64()),
        ("kind", pa.int8()),
        ("row", pa.binary()),
    ]
)

# (changes, number of slots) → arrays of slots with an element for each change; a change belongs to the slots of all
# arrays.
SlotsOf = Callable[[Changes, int], Sequence[Ints]]


def in_order(segment: ChangeSegment) -> Iterator[tuple[int, int]]:
    """(index in `segment.changes`, row in it) of every change, in upstream's order."""
    if not segment.changes:
        return
    of = np.concatenate([np.full(len(one), number) for number, one in enumerate(segment.changes)])
    row = np.concatenate([np.arange(len(one)) for one in segment.changes])
    by_place = np.argsort(np.concatenate([one.order for one in segment.changes]), kind="stable")
    yield from zip(of[by_place].tolist(), row[by_place].tolist(), strict=True)


class StreamDecoder:
    """Decodes rows with one view. Not thread-safe."""

    def __init__(self, view: SchemaView, *, stored_generated: bool = False) -> None:
        """`stored_generated`: images have stored generated columns, too."""
        self.view = view
        self._stored_generated = stored_generated
        self._columns = ColumnDecoder(view, decoder=self._rows())

    def _rows(self) -> Decoder:
        return Decoder(self.view, stored_generated=self._stored_generated)

    def builder(self) -> StreamBuilder:
        return StreamBuilder(self)

    def transaction(self) -> Callable[[bytes, int, int], ChangeSegment]:
        """A function for a transaction that is decoded in pieces: (piece, after_ts, until_ts) → its changes, whose
        `sequence` continues from piece to piece."""
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
        """The changes of all rows that the view does not skip (schema.view.SkipReason). Raises as ColumnDecoder.decode,
        and TableUnverified."""
        found: list[Changes] = []
        for group in self._columns.groups(rows):
            codec = self._columns.codec(group)
            if codec is not None:
                found += self._columns.decode_group(codec, group)
            elif self._columns.decoder.has_relocated_rows:
                found += self._one_by_one(group)
        self._columns.decoder.check_verified()
        return found

    def _one_by_one(self, group: Rows) -> Iterator[Changes]:
        """Rows whose partition was moved or dropped; their columns show which table they belong to."""
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
        try:
            found = [one for rows in shares for one in self.decode(rows)]
        except (DecodeError, SchemaError) as error:
            self._raise_first(payloads, error)
            raise
        return _segment_of(found, source_bytes, after_ts, until_ts)

    def _raise_first(self, payloads: Sequence[bytes], error: Exception) -> None:
        """Decode row by row, and raise the error of the first row that has one."""
        decoder = self._rows()
        try:
            for _ in decoder.rows(payloads, lambda codec: codec.asking_for(range(len(codec.forms)))):
                pass
            decoder.check_verified()
        except (DecodeError, SchemaError) as first:
            raise first from error


class StreamBuilder:
    """Collects binlogs in any order, then returns their changes, once: all by `finish`, or divided for a shuffle by
    `cut`."""

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._payloads: list[bytes] = []

    def add_all(self, payloads: Iterable[bytes]) -> None:
        """Add served binlogs; of a transaction that is added twice, one copy is used (rule 19)."""
        self._payloads.extend(payloads)

    def add_in_order(self, payloads: Iterable[bytes]) -> None:
        """As `add_all`: nothing is folded."""
        self._payloads.extend(payloads)

    def finish(self, after_ts: int, until_ts: int) -> ChangeSegment:
        """Raises the first row's error: DecodeError, TableUnknown, UnknownColumn or TableUnverified, which name the
        table and commit_ts."""
        scanned = _scanned(self._payloads)
        return self._decoder._segment([scanned.rows], self._payloads, scanned.source_bytes, after_ts, until_ts)

    def hides_conflict(self) -> bool:
        """False: without folding no conflict is hidden."""
        return False

    def cut(self, slots: int, slots_of: SlotsOf) -> dict[int, bytes]:
        """Slot → blob for `merge`, for slots that have changes. A change that belongs to several slots is in each of
        them, once. Raises as `finish`."""
        scanned = _scanned(self._payloads)
        rows = scanned.rows
        segment = self._decoder._segment([rows], self._payloads, scanned.source_bytes, 0, 0)
        found: list[Ints] = []
        for changes in segment.changes:
            for number, slot in enumerate(slots_of(changes, slots)):
                if number == len(found):
                    found.append(np.full(int(rows.order.max(initial=-1)) + 1, -1, np.int64))
                found[number][changes.order] = slot
        of_rows = [slot[rows.order] for slot in found]
        blobs: dict[int, bytes] = {}
        size = segment.source_bytes
        for number in np.unique(np.concatenate([one[one >= 0] for one in of_rows])).tolist() if of_rows else ():
            chosen = np.any([one == number for one in of_rows], axis=0)
            blobs[number] = _packed(rows.take(chosen), size)
            size = 0
        return blobs


def merge(decoder: StreamDecoder, blobs: Iterable[bytes], after_ts: int, until_ts: int) -> ChangeSegment:
    """One slot's changes from the blobs of all parts of a batch, in any order. Raises BlobError, and as `finish`."""
    tables, size = [], 0
    for blob in blobs:
        table, part_size = _unpacked(blob)
        tables.append(table)
        size += part_size
    if not tables:
        return ChangeSegment(after_ts, until_ts, (), 0, size, 0)
    whole = pa.concat_tables(tables)
    commits, starts, sequence = (whole.column(at).to_numpy() for at in range(3))
    by_place = np.lexsort((sequence, starts, commits))
    again = np.zeros(len(by_place), np.bool_)
    if len(by_place) > 1:  # a transaction that is on two pumps
        again[1:] = np.all([one[by_place][1:] == one[by_place][:-1] for one in (commits, starts, sequence)], axis=0)
    ordered = whole.take(pa.array(by_place[~again]))
    found = [one for rows in _shares(ordered) for one in decoder.decode(rows)]
    return _segment_of(found, size, after_ts, until_ts)


def _segment_of(found: Sequence[Changes], source_bytes: int, after_ts: int, until_ts: int) -> ChangeSegment:
    commits = len(np.unique(np.concatenate([one.commit_ts for one in found]))) if found else 0
    return ChangeSegment(after_ts, until_ts, tuple(found), sum(map(len, found)), source_bytes, commits)


def _scanned(payloads: Sequence[bytes]) -> Scanned:
    try:
        return scan_all(payloads)
    except DecodeError as error:
        _raise_first_torn(payloads, error)
        raise


def _raise_first_torn(payloads: Sequence[bytes], error: DecodeError) -> None:
    for payload in payloads:
        try:
            scan_all([payload])
        except DecodeError as first:
            raise first from error


def _packed(rows: Rows, size: int) -> bytes:
    arrays = [
        pa.array(rows.commit_ts), pa.array(rows.start_ts), pa.array(rows.sequence), pa.array(rows.version),
        pa.array(rows.table_id), pa.array(rows.kind.astype(np.int8)),
        pa.array([rows.row(number) for number in range(len(rows))], pa.binary()),
    ]  # fmt: skip
    return _HEAD.pack(CHANGES_BLOB, len(rows), size) + ipc_stream(arrays, _SCHEMA)


def _unpacked(blob: bytes) -> tuple[Any, int]:
    """(the rows' table, bytes of binlogs)."""
    try:
        version, count, size = _HEAD.unpack_from(blob)
        if version != CHANGES_BLOB:
            raise BlobError(f"a slot's blob of {len(blob)} bytes has version {version:x}, not {CHANGES_BLOB:x}")
        with pa.ipc.open_stream(pa.py_buffer(memoryview(blob)[_HEAD.size :])) as reader:
            table = reader.read_all()
        if table.schema != _SCHEMA or table.num_rows != count:
            raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: {table.num_rows} rows of {count}")
    except (StructError, pa.ArrowException, OSError) as error:
        raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: {error}") from None
    return table, size


def _shares(table: Any) -> Iterator[Rows]:
    """Sorted rows in shares of at most SHARE_BYTES_MAX, or of one larger row."""
    data = table.column("row").to_pylist()
    sizes = np.fromiter(map(len, data), np.int64, len(data))
    share = (np.cumsum(sizes) - sizes) // SHARE_BYTES_MAX
    numbers = [table.column(name).to_numpy() for name in _SCHEMA.names[:6]]
    for one in np.unique(share).tolist():
        chosen = np.flatnonzero(share == one)
        begin = np.cumsum(sizes[chosen] + 1) - sizes[chosen] - 1
        commits, starts, sequence, version, table_id, kind = (of[chosen] for of in numbers)
        yield Rows(
            Buffer([data[at] for at in chosen.tolist()], _BETWEEN), commits, starts, sequence, version, table_id,
            kind.astype(np.int64), begin, begin + sizes[chosen], chosen, chosen,
        )  # fmt: skip
