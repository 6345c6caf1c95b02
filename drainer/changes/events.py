"""The events of keys (net.KeyEvents) of rows that were decoded as columns, and of rows that were decoded one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError

from drainer.batch.work import Key, Kind
from drainer.changes.decode import Changes, Columns
from drainer.changes.key import identities
from drainer.changes.net import KeyEvents
from drainer.changes.vector import Ints
from drainer.row.codec import Codec
from drainer.row.decode import DecodedRow
from drainer.row.fast_path import Cells
from drainer.row.format import Format, written
from drainer.row.key import identity


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
