"""Fold the rows between two DDLs, or any part of them: binlogs in, net rows out, or blobs for a shuffle.

Rows of tables that have many of them are decoded as columns, all others one by one. Both become events of keys, which
are folded together (net.py). Changes of tables that have no key by which rows may be folded stay in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.runtime.log import get_logger

from drainer.batch.work import Key, KeyChange, Kind, Literals, SegmentWork, TableShape
from drainer.changes import collector_paused
from drainer.changes.decode import Changes, ColumnDecoder, Columns
from drainer.changes.groups import KeysOfTables, LinkCollector
from drainer.changes.net import KeyEvents, States, fold, identities
from drainer.changes.scan import Rows, Scanned, scan_all
from drainer.changes.slots import FoldedPart, OrderedChanges, pack
from drainer.changes.vector import Ints, Mask
from drainer.row.codec import Codec, DecodedRow, Decoder, Format, check_row, written, written_literals
from drainer.row.fast_path import Cells
from drainer.row.layout import identity
from drainer.row.transaction import PayloadCollector
from drainer.schema.errors import SchemaError
from drainer.schema.view import SchemaView


def events_of(changes: Changes, format_: Format) -> list[KeyEvents]:
    """Return the events of changes of a table that folds. Raises DecodeError, which names no row, for a key that cannot
    be written, and for a NULL in the key."""
    key = changes.codec.layout.key
    every = np.arange(len(changes))

    def some(kind: Kind, keys: Any, image: Any | None, chosen: Ints, read: Any | None = None) -> KeyEvents:
        count = len(chosen)
        return KeyEvents(
            np.full(count, changes.shape.table_id, np.int64),
            keys,
            changes.order[chosen],
            changes.commit_ts[chosen],
            changes.sequence[chosen],
            np.full(count, int(kind), np.int64),
            np.full(count, key.imaged),
            pa.nulls(count, pa.binary()) if image is None else image,
            read,
            lambda of: _packed(changes, chosen[of], format_),
        )

    if changes.kind is Kind.DELETE:
        return [some(Kind.DELETE, _keys(changes, changes.old), _images(changes, changes.old, format_), every)]
    new, image = _keys(changes, changes.new), _images(changes, changes.new, format_) if key.imaged else None
    if changes.kind is Kind.INSERT:
        return [some(Kind.INSERT, new, image, every)]
    old = _keys(changes, changes.old)
    stays = pc.equal(old, new).to_numpy(zero_copy_only=False)
    read = _images(changes, changes.old, format_) if key.imaged or not stays.all() else None
    if stays.all():
        return [some(Kind.UPDATE, new, image, every, read=read)]
    moved, kept = np.flatnonzero(~stays), np.flatnonzero(stays)
    to, by = pa.array(moved), pa.array(kept)
    assert read is not None
    return [
        some(Kind.DELETE, old.take(to), read.take(to), moved),
        some(Kind.INSERT, new.take(to), None if image is None else image.take(to), moved),
        some(
            Kind.UPDATE,
            new.take(by),
            None if image is None else image.take(by),
            kept,
            read.take(by) if key.imaged else None,
        ),
    ]


def _keys(changes: Changes, columns: Columns | None) -> Any:
    """Return the identities of one image of the changes."""
    assert columns is not None
    key = changes.codec.layout.key
    for at in key.columns:
        if columns[at].null_count:
            number = int(np.argmin(columns[at].is_valid().to_numpy(zero_copy_only=False)))
            error = DecodeError("key", offset=0, detail=f"{key.name} has a NULL")
            changes.codec.fail(error, int(changes.commit_ts[number]))
    return identities(key, changes.column_types, columns)


def _images(changes: Changes, columns: Columns | None, format_: Format) -> Any:
    """Return the keys of one image of the changes as the destination matches them."""
    assert columns is not None
    key = changes.codec.layout.key
    return format_.packed_rows([changes.column_types[at] for at in key.columns], [columns[at] for at in key.columns])


def _packed(changes: Changes, chosen: Ints, format_: Format) -> Any:
    assert changes.new is not None
    whole = len(chosen) == len(changes) and bool((chosen == np.arange(len(changes))).all())
    columns = changes.new if whole else [column.take(pa.array(chosen)) for column in changes.new]
    return format_.packed_rows(changes.column_types, columns)


@dataclass(slots=True)
class KeyEventCollector:
    """Collects the events of rows that were decoded one by one, of any tables that fold."""

    format: Format
    # Of each event: table id, identity, order, commit_ts, sequence, kind, imaged, image, and image that an update read.
    _events: list[tuple[int, bytes, int, int, int, int, bool, bytes | None, bytes | None]] = field(default_factory=list)
    _rows: list[tuple[Codec, Cells, int]] = field(default_factory=list)
    _writers: dict[Codec, Callable[[Cells], Key]] = field(default_factory=dict)

    def add(self, row: DecodedRow, order: int) -> None:
        """`order`: as in Changes. Raises DecodeError naming table and commit_ts."""
        codec, _, old, new, commit_ts, _ = row
        imaged = codec.imaged
        new_key = None if new is None else codec.key(new, commit_ts)
        if old is not None:
            old_key = codec.key(old, commit_ts)
            if new is not None and old_key == new_key:
                image, read = (self._image(row, new), self._image(row, old)) if imaged else (None, None)
                self._add(row, order, identity(new_key), Kind.UPDATE, image, read)
                return
            self._add(row, order, identity(old_key), Kind.DELETE, self._image(row, old), None)
        if new is not None:
            image = self._image(row, new) if imaged else None
            self._add(row, order, identity(new_key), Kind.INSERT, image, None)

    def _add(
        self, row: DecodedRow, order: int, key: bytes, kind: Kind, image: bytes | None, read: bytes | None
    ) -> None:
        codec, _, _, new, commit_ts, sequence = row
        table_id = codec.shape.table_id
        self._events.append((table_id, key, order, commit_ts, sequence, int(kind), codec.imaged, image, read))
        self._rows.append((codec, new or (), commit_ts))

    def _image(self, row: DecodedRow, cells: Cells) -> bytes:
        """The key as a destination matches it."""
        codec = row.codec
        key = codec.layout.key.columns
        write = self._writers.get(codec)
        if write is None:
            write = self._writers[codec] = self.format.key_writer([codec.column_types[at] for at in key])
        try:
            return self.format.pack(write([cells[at] for at in key]))
        except DecodeError as error:
            codec.fail(error, row.commit_ts)

    def events(self) -> list[KeyEvents]:
        if not self._events:
            return []
        table, key, order, commit_ts, sequence, kind, imaged, image, read = zip(*self._events, strict=True)
        return [
            KeyEvents(
                np.array(table, np.int64),
                pa.array(key, pa.binary()),
                np.array(order, np.int64),
                np.array(commit_ts, np.uint64),
                np.array(sequence, np.int64),
                np.array(kind, np.int64),
                np.array(imaged, np.bool_),
                pa.array(image, pa.binary()),
                pa.array(read, pa.binary()) if any(imaged) else None,
                self._packed,
            )
        ]

    def _packed(self, chosen: Ints) -> Any:
        """The rows of some events. DecodeError, naming table and commit_ts, for one that cannot be written."""
        by_codec: dict[Codec, list[int]] = {}
        for at, number in enumerate(chosen.tolist()):
            by_codec.setdefault(self._rows[number][0], []).append(at)
        found: list[bytes] = [b""] * len(chosen)
        for codec, indexes in by_codec.items():
            _, cells, stamps = zip(*[self._rows[number] for number in chosen[indexes].tolist()], strict=True)
            for at, row in zip(indexes, written(self.format, codec, cells, stamps), strict=True):
                found[at] = self.format.pack(row)
        return pa.array(found, pa.binary())


# A table must have this many rows, else they are decoded one by one, at some 6 µs a row: arrays cost more than two
# milliseconds for each table, however few rows there are (python -m bench.columns).
COLUMNS_ROWS_MIN: Final = 500
# Offsets in a buffer, and in the text made of it, which may be several times as long, are 32-bit numbers.
SHARE_BYTES_MAX: Final = 64 << 20
# The most bytes of binlogs added in order that are held before they are folded.
FLUSH_BYTES: Final = 4 << 20

_KINDS: Final = tuple(Kind)
_log = get_logger(__name__)


class SegmentDecoder:
    """Decodes the rows of one view for a destination that writes a given format. Caches decoders; not thread-safe.
    `whole`: the rows that are cut for a shuffle come with what their transactions have in common (groups.py)."""

    def __init__(
        self, view: SchemaView, format_: Format, *, columns_rows_min: int = COLUMNS_ROWS_MIN, whole: bool = False
    ) -> None:
        self.view = view
        self.format = format_
        self.rows = Decoder(view)
        self.columns = ColumnDecoder(view, decoder=self.rows)
        self.columns_rows_min = columns_rows_min
        self.keys = KeysOfTables(view) if whole else None

    def segment(self, payloads: Sequence[bytes], after_ts: int, until_ts: int) -> SegmentWork:
        """Return the net rows of a segment's binlogs by (table id, identity). The binlogs may be in any order; the
        result does not depend on it (rule 16). If two rows have one key, the later one remains (rule 21), as if a batch
        had ended between them.

        Raises DecodeError, TableUnknown, UnknownColumn or TableUnverified, naming the table and commit_ts of the first
        bad row."""
        fold = _Fold(self)
        commit_ts = [np.zeros(0, np.uint64)]
        with self.first_error(payloads):  # the first bad row of all shares
            for share in _shares(payloads):
                scanned = scan_all(share)
                fold.add(scanned, share)
                commit_ts.append(scanned.commit_ts)
        commits = len(np.unique(np.concatenate(commit_ts)))
        return fold.work(self.format, after_ts, until_ts, commits)

    def transaction(self) -> Callable[[bytes, int, int], SegmentWork]:
        """Return a function for a transaction that is decoded in pieces: (piece, after_ts, until_ts) → its work."""
        return lambda piece, after_ts, until_ts: self.segment([piece], after_ts, until_ts)

    def raise_first(self, payloads: Iterable[bytes], error: Exception) -> None:
        """Decode row by row, and raise the error of the first row that has one."""
        decoder = Decoder(self.view)
        try:
            for row in decoder.rows(payloads):
                check_row(self.format, *row[:5])
            decoder.check_verified()
        except (DecodeError, SchemaError) as first:
            raise first from error

    @contextmanager
    def first_error(self, payloads: Iterable[bytes]) -> Iterator[None]:
        """Raise, in place of an error of the body, that of the first row that has one."""
        try:
            yield
        except (DecodeError, SchemaError) as error:
            self.raise_first(payloads, error)
            raise


class SegmentCutter(PayloadCollector):
    """Collects any part of a segment's binlogs, and folds and divides them for a shuffle, once. Binlogs may be added in
    any order. If they are added in order (`add_in_order`), they are folded after every `flush_bytes` and not kept."""

    def __init__(self, decoder: SegmentDecoder, *, flush_bytes: int = FLUSH_BYTES) -> None:
        super().__init__(decoder.view.marks, flush_bytes)
        self._decoder = decoder
        self._fold = _Fold(decoder)
        self._folded_ts = 0

    def _flush(self) -> None:
        """Fold all binlogs, except those of the last commit_ts, for which more may follow. Getting new memory from the
        kernel for them would cost as much as decoding."""
        payloads = self._payloads
        with self._decoder.first_error(payloads):
            scanned = scan_all(payloads)
        last_ts = int(scanned.commit_ts.max())
        if int(scanned.commit_ts.min()) <= self._folded_ts:
            raise ValueError(f"binlog of commit_ts {int(scanned.commit_ts.min())} after that of {self._folded_ts}")
        earlier = scanned.before(last_ts)
        self._payloads = [payloads[at] for at in np.flatnonzero(scanned.commit_ts == last_ts).tolist()]
        self._bytes = sum(map(len, self._payloads))
        if len(earlier.commit_ts):
            self._folded_ts = int(earlier.commit_ts.max())
            with self._decoder.first_error(payloads):
                self._fold.add(earlier, payloads)

    @property
    def changes_decoder(self) -> ColumnDecoder | None:
        """The decoder that must have decoded the rows passed to `add_changes`. None: rows can be added only as binlogs,
        because the part needs to know which rows belong to one transaction, or, with loopback-control, which
        transactions the drainer of the opposite direction wrote."""
        return self._decoder.columns if self._decoder.keys is None and self._decoder.view.marks is None else None

    def add_changes(self, changes: Sequence[Changes], size: int) -> None:
        """Add decoded rows of a source that has no binlogs; `size`: in bytes. Raises DecodeError, SchemaError or
        ArrowException, and then has added nothing."""
        self._fold.add_changes(changes, size)

    def cut(self, slots: int) -> dict[int, bytes]:
        """Return slot → blob for `slots.merge_slot`, for slots that have rows. Raises as `SegmentDecoder.segment`."""
        for payloads in _shares(self._payloads):
            with self._decoder.first_error(payloads):
                self._fold.add(scan_all(payloads), payloads)
        return pack(self._fold, slots)


class _Fold(FoldedPart):
    """The folded binlogs of a part."""

    def __init__(self, decoder: SegmentDecoder) -> None:
        super().__init__()
        self._decoder = decoder

    def add(self, scanned: Scanned, payloads: Sequence[bytes]) -> None:
        """Raises DecodeError or SchemaError, not always that of the first bad row."""
        rows = scanned.rows
        ids, counts = np.unique(rows.table_id, return_counts=True)
        large = np.isin(rows.table_id, ids[counts >= self._decoder.columns_rows_min])
        part = _Share(self._decoder)
        try:
            states = part.fold(rows, large)
        except (DecodeError, SchemaError, pa.ArrowException) as error:
            if not large.any():
                raise
            # A number exceeds its column's type, or a text the size of an array, or an old value that is not needed is
            # bad.
            self._decoder.raise_first(payloads, error)
            _log.warning("columnar decoding failed for these rows: they are decoded row by row", why=str(error))
            part = _Share(self._decoder)
            states = part.fold(rows, np.zeros(len(rows), np.bool_))
        self._keep(part, states, scanned.source_bytes)

    def add_changes(self, changes: Sequence[Changes], size: int) -> None:
        part = _Share(self._decoder)
        self._keep(part, part.fold_changes(changes), size)

    def _keep(self, part: _Share, states: States, size: int) -> None:
        self._decoder.rows.check_verified()
        self.states.append(states)
        self.shapes |= part.shapes
        self.ordered |= part.ordered
        self.change_count += part.change_count
        self.source_bytes += size
        if part.links is not None:
            self.common |= part.links.common
            self.links.append(part.links.links())


class _Share:
    """Binlogs that were scanned together."""

    def __init__(self, decoder: SegmentDecoder) -> None:
        self._decoder = decoder
        self.shapes: dict[int, TableShape] = {}
        self.ordered: OrderedChanges = {}
        self.change_count = 0
        self.links = LinkCollector(decoder.keys) if decoder.keys is not None else None
        self._collector = KeyEventCollector(decoder.format)
        # (row, its transaction's start_ts) of tables that stay in order
        self._in_order: list[tuple[DecodedRow, int]] = []

    def fold(self, rows: Rows, large: Mask) -> States:
        """`large`: which rows are of tables that have many. Raises DecodeError, SchemaError or ArrowException."""
        with collector_paused():
            events = self._columns(rows if large.all() else rows.take(large)) if large.any() else []
            if not large.all():
                self._one_by_one(rows.take(~large) if large.any() else rows)
            self._write()
            events += self._collector.events()
            if self.links is not None:
                self.links.add_events(events)
            return fold(events)

    def fold_changes(self, changes: Sequence[Changes]) -> States:
        """Fold rows of tables that fold."""
        with collector_paused():
            return fold([event for one in changes for event in self._events(one)])

    def _events(self, changes: Changes) -> list[KeyEvents]:
        self.shapes.setdefault(changes.shape.table_id, changes.shape)
        self.change_count += len(changes)
        return events_of(changes, self._decoder.format)

    def _columns(self, rows: Rows) -> list[KeyEvents]:
        decoder = self._decoder.columns
        found = []
        for group in decoder.groups(rows):
            codec = decoder.codec(group)
            if codec is None or not codec.shape.foldable:
                if codec is not None or decoder.decoder.relocates(int(group.table_id[0]), int(group.version[0])):
                    self._one_by_one(group)
                continue
            unique = self.links is not None and bool(self.links.keys_of(codec).unique)
            for changes in decoder.decode_group(codec, group, whole=unique):
                found += self._events(changes)
                if self.links is not None:
                    self.links.add_changes(changes)
        return found

    def _one_by_one(self, rows: Rows) -> None:
        decoder = self._decoder.rows
        fields = [rows.table_id, rows.version, rows.commit_ts, rows.start_ts, rows.sequence, rows.kind]
        by_order = np.argsort(rows.order)
        for number, order, table_id, version, commit_ts, start_ts, sequence, kind in zip(
            by_order.tolist(), rows.order[by_order].tolist(), *(of[by_order].tolist() for of in fields), strict=True
        ):
            data = rows.row(number)
            codec = decoder.codec_of_row(table_id, version, commit_ts, _KINDS[kind], data)
            if codec is None or _KINDS[kind] in codec.ignored_kinds:
                continue
            if self.links is not None:
                codec = self.links.keys_of(codec).codec
            change = codec.change(_KINDS[kind], data, commit_ts)
            if change is None:
                continue
            self.change_count += 1
            row = DecodedRow(codec, *change, commit_ts, sequence)
            if codec.shape.foldable:
                self.shapes.setdefault(codec.shape.table_id, codec.shape)
                self._collector.add(row, order)
            else:
                self._in_order.append((row, start_ts))
            if self.links is not None:
                self.links.add_row(row)

    def _write(self) -> None:
        """Make literals of the rows that stay in order. DecodeError, naming table and commit_ts, of one that cannot be
        written, not always the first one."""
        literals = _literals(self._decoder.format, [row for row, _ in self._in_order])
        for (row, start_ts), (old, new) in zip(self._in_order, literals, strict=True):
            change = KeyChange(row.codec.shape, row.kind, old, new, row.commit_ts, row.sequence)
            self.ordered[row.commit_ts, start_ts, row.sequence] = change


def _literals(format_: Format, rows: Sequence[DecodedRow]) -> list[tuple[Literals | None, Literals | None]]:
    """(old, new) of each row, written together with those of the same codec."""
    images_of: dict[Codec, list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        for image in (0, 1):
            if row[2 + image] is not None:
                images_of.setdefault(row.codec, []).append((index, image))
    found: list[list[Literals | None]] = [[None, None] for _ in rows]
    for codec, chosen in images_of.items():
        cells = [rows[index].image(image) for index, image in chosen]
        stamps = [rows[index].commit_ts for index, _ in chosen]
        for (index, image), one in zip(chosen, written_literals(format_, codec, cells, stamps), strict=True):
            found[index][image] = one
    return [(old, new) for old, new in found]


def _shares(payloads: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the payloads in shares of at most SHARE_BYTES_MAX, or of one larger payload. A transaction in two shares is
    folded twice, which changes only the counts."""
    begin = size = 0
    for at, payload in enumerate(payloads):
        if size and size + len(payload) > SHARE_BYTES_MAX:
            yield payloads[begin:at]
            begin, size = at, 0
        size += len(payload)
    if begin < len(payloads):
        yield payloads[begin:]
