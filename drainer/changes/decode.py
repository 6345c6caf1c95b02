"""Decodes rows to Arrow columns. Each column has one element for each row of one table, schema_version and kind.

Use without the drainer's service:

    decoder = ColumnDecoder(view)                        # a drainer.schema.view.SchemaView of the tables
    for changes in decoder.decode(scan_all(payloads).rows):
        changes.shape, changes.kind, changes.commit_ts, changes.old, changes.new
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError

from drainer.batch.work import Kind, TableShape
from drainer.changes.reading import RowReader
from drainer.changes.scan import Rows
from drainer.changes.vector import Ints, Mask, Words
from drainer.row.codec import Codec, Decoder
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass, shown_as
from drainer.row.fast_path import Cells
from drainer.schema.view import SchemaView

# Fewer rows of one kind than this are decoded one by one, at some 4 µs each: decoding them together takes a millisecond
# or more for each kind, however few there are (python -m bench.columns).
VECTOR_ROWS_MIN: Final = 256

Columns = tuple[Any, ...]  # pyarrow Arrays, parallel to `shape.columns`; None for a column that was not decoded


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of one kind, written under one TableInfo. All arrays have one length. `column_types`: the types of the
    decoded values (row/column_type.py), parallel to `shape.columns`; `order`: see scan.Rows. `old` is None for
    inserts, `new` for deletes.
    """

    codec: Codec
    kind: Kind
    commit_ts: Words
    start_ts: Words
    sequence: Ints
    order: Ints
    old: Columns | None
    new: Columns | None

    @property
    def shape(self) -> TableShape:
        return self.codec.shape

    @property
    def column_types(self) -> tuple[ColumnType, ...]:
        return self.codec.column_types

    def __len__(self) -> int:
        return len(self.order)

    def take(self, chosen: Ints | Mask) -> Changes:
        """Return the chosen changes."""

        def some(columns: Columns | None) -> Columns | None:
            if columns is None:
                return None
            of = pa.array(np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen)
            return tuple(None if column is None else column.take(of) for column in columns)

        stamps = {name: getattr(self, name)[chosen] for name in ("commit_ts", "start_ts", "sequence", "order")}
        return replace(self, old=some(self.old), new=some(self.new), **stamps)


class ColumnDecoder:
    """Decodes rows with one view. Caches a decoder for each table and schema_version. Not thread-safe."""

    def __init__(
        self, view: SchemaView, *, vector_rows_min: int = VECTOR_ROWS_MIN, decoder: Decoder | None = None
    ) -> None:
        """`decoder`: a decoder of this view to share."""
        self.decoder = decoder or Decoder(view)
        self._readers: dict[int, tuple[Codec, RowReader | None]] = {}
        self._vector_rows_min = vector_rows_min

    def decode(self, rows: Rows, *, whole: bool = True) -> Iterator[Changes]:
        """Decode all rows except those that the view skips (schema.view.SkipReason). Without `whole`, old images have
        only the columns of the fold's key, in tables that have one.

        Raises DecodeError, TableUnknown, UnknownColumn or ColumnGoing, naming table and commit_ts. If several rows are
        bad, the error is not always that of the first. Call `decoder.check_verified` before the rows are used."""
        for group in self.groups(rows):
            found = self.codec(group)
            if found is not None:
                yield from self.decode_group(found, group, whole=whole)

    def groups(self, rows: Rows) -> Iterator[Rows]:
        """Yield the rows of each table and schema_version, ordered by their first row."""
        if not len(rows):
            return
        if bool((rows.table_id == rows.table_id[0]).all() and (rows.version == rows.version[0]).all()):
            yield rows
            return
        tables, table = np.unique(rows.table_id, return_inverse=True)
        versions, version = np.unique(rows.version, return_inverse=True)
        # A number for each pair of a table and a version, and the first change of each. Pairs without rows keep the
        # greatest number, so they are last in the order, and are left out.
        of = table * len(versions) + version
        first = np.full(len(tables) * len(versions), np.iinfo(np.int64).max)
        np.minimum.at(first, of, rows.order)
        for number in np.argsort(first, kind="stable")[: len(np.unique(of))].tolist():
            yield rows.take(of == number)

    def codec(self, group: Rows) -> Codec | None:
        """Return the codec of a group; None if its rows are skipped, or if each row has its own codec
        (Decoder.codec_of_row).
        """
        commit_ts = int(group.commit_ts[np.argmin(group.order)])
        return self.decoder.codec(int(group.table_id[0]), int(group.version[0]), commit_ts)

    def decode_group(self, codec: Codec, group: Rows, *, whole: bool = True) -> Iterator[Changes]:
        """Decode the rows of one codec, by kind; the event filter's kinds are left out. Without `whole`, of old images
        only the key's columns are decoded."""
        wanted_old = wanted_of_old(codec, whole=whole)
        for kind in Kind:
            if kind in codec.ignored_kinds:
                continue
            of_kind = group.kind == int(kind)
            rows = group if of_kind.all() else group.take(of_kind)
            for changes in self._of_kind(codec, kind, rows, wanted_old, whole=whole) if len(rows) else ():
                yield from by_rules(changes)

    def _of_kind(
        self, codec: Codec, kind: Kind, rows: Rows, wanted_old: Sequence[int], *, whole: bool
    ) -> Iterator[Changes]:
        reader = self._reader(codec) if len(rows) >= self._vector_rows_min else None
        if reader is None:
            yield _one_by_one(codec, kind, rows, wanted_old, whole=whole)
            return
        good, old, new = in_step(reader, kind, rows, wanted_old, range(len(codec.layout.targets)))
        if good.all():
            yield _changes(codec, kind, rows, old, new)
            return
        yield _changes(codec, kind, rows.take(good), old, new)
        yield _one_by_one(codec, kind, rows.take(~good), wanted_old, whole=whole)

    def _reader(self, codec: Codec) -> RowReader | None:
        found = self._readers.get(id(codec))
        if found is None:
            # keeps the codec alive, so that its id is not reused
            found = self._readers[id(codec)] = codec, RowReader.of(codec.layout)
        return found[1]


def wanted_of_old(codec: Codec, *, whole: bool) -> tuple[int, ...]:
    """Return the columns of old images that are decoded (ColumnDecoder.decode)."""
    key = codec.layout.key.columns
    if whole or not key:
        return tuple(range(len(codec.layout.targets)))
    return tuple(sorted({*key, *(codec.rules.columns if codec.rules is not None else ())}))


def by_rules(changes: Changes) -> Iterator[Changes]:
    """What becomes of changes of one kind by the rules for rows and columns (RowRules.row)."""
    rules = changes.codec.rules
    if rules is None:
        yield changes
        return
    for kind, chosen in rules.kinds(changes.old, changes.new, len(changes)):
        of = changes if chosen.all() else changes.take(chosen)
        old = None if kind is Kind.INSERT else rules.masked(of.old)
        yield replace(of, kind=kind, old=old, new=None if kind is Kind.DELETE else rules.masked(of.new))


def in_step(
    reader: RowReader, kind: Kind, rows: Rows, wanted_old: Sequence[int], every: Sequence[int]
) -> tuple[Mask, Columns | None, Columns | None]:
    """Decode rows together. Return (rows that were decoded, old image, new image)."""
    buffer, count = rows.buffer, len(every)
    if kind is Kind.UPDATE:
        good, old, new = reader.update(buffer, rows.begin, rows.end, wanted_old, every)
        return good, _spread(old, wanted_old, count), tuple(new)
    if kind is Kind.INSERT:
        good, new = reader.insert(buffer, rows.begin, rows.end, every)
        return good, None, tuple(new)
    good, old = reader.delete(buffer, rows.begin, rows.end, wanted_old)
    return good, _spread(old, wanted_old, count), None


def _spread(arrays: Sequence[Any], wanted: Sequence[int], count: int) -> Columns:
    found: list[Any] = [None] * count
    for target, array in zip(wanted, arrays, strict=True):
        found[target] = array
    return tuple(found)


def _changes(codec: Codec, kind: Kind, rows: Rows, old: Columns | None, new: Columns | None) -> Changes:
    return Changes(codec, kind, rows.commit_ts, rows.start_ts, rows.sequence, rows.order, old, new)


def _one_by_one(codec: Codec, kind: Kind, rows: Rows, wanted_old: Sequence[int], *, whole: bool) -> Changes:
    """Decode in the rows' order, so that the error is that of the first bad row. With `whole`, a number beyond its SET
    or BIT is rejected here; otherwise it is rejected when it is written."""
    codec = codec.asking_for(wanted_old)
    olds: list[Cells] = [()] * len(rows)
    news: list[Cells] = [()] * len(rows)
    for number in np.argsort(rows.order, kind="stable").tolist():
        old, new = codec.images(kind, rows.row(number), int(rows.commit_ts[number]))
        olds[number], news[number] = old or (), new or ()
    column_types = codec.column_types

    def columns(images: list[Cells], wanted: Sequence[int]) -> Columns:
        arrays = [_array(codec, column_types[at], [one[at] for one in images], rows, whole) for at in wanted]
        return _spread(arrays, wanted, len(column_types))

    old_columns = None if kind is Kind.INSERT else columns(olds, wanted_old)
    new_columns = None if kind is Kind.DELETE else columns(news, range(len(column_types)))
    return _changes(codec, kind, rows, old_columns, new_columns)


def _array(codec: Codec, column_type: ColumnType, values: list[DecodedValue], rows: Rows, is_checked: bool) -> Any:
    """Make the array of a column. Raises DecodeError, naming table and commit_ts, for a number that the column's type
    cannot hold, and with `is_checked` for a number beyond a SET or BIT."""
    if is_checked and column_type.type_class in (TypeClass.SET, TypeClass.BIT):
        _check(codec, column_type, values, rows)
    try:
        return pa.array(values, column_type.decoded_type)
    except (OverflowError, pa.ArrowInvalid):
        for value, commit_ts in zip(values, rows.commit_ts.tolist(), strict=True):
            try:
                pa.array([value], column_type.decoded_type)
            except (OverflowError, pa.ArrowInvalid):
                detail = f"{value!r:.100} does not fit"
                codec.fail(DecodeError(f"{column_type.kind.mysql_name} value", offset=0, detail=detail), commit_ts)
        raise


def _check(codec: Codec, column_type: ColumnType, values: list[DecodedValue], rows: Rows) -> None:
    show = shown_as(column_type)
    for value, commit_ts in zip(values, rows.commit_ts.tolist(), strict=True):
        try:
            if value is not None:
                show(value)
        except DecodeError as error:
            codec.fail(error, commit_ts)
