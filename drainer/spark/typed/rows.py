"""Converts pulled binlogs into Arrow record batches of the typed change stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.cluster import tso
from binlog.errors import BinlogError
from pyspark.sql.pandas.types import to_arrow_schema

from drainer.batch.work import Kind
from drainer.changes.decode import VECTOR_ROWS_MIN
from drainer.changes.scan import Rows, scan_all
from drainer.changes.vector import Ints, Mask
from drainer.spark.typed.fields import (
    AFTER,
    BEFORE,
    CHANGELOG,
    KeyUnfit,
    Reading,
    SchemaChanged,
    change_schema,
    identifies,
)
from drainer.spark.typed.row_reader import Part, RowReader

BATCH_TRANSACTIONS = 10_000
BATCH_BYTES = 2 << 20
KIND_NAMES = {Kind.INSERT: "insert", Kind.UPDATE: "update", Kind.DELETE: "delete"}

_T = TypeVar("_T")


class Changes:
    """Collects the changes of the query's tables into record batches. Not thread-safe."""

    def __init__(self, reading: Reading, *, vector_rows_min: int = VECTOR_ROWS_MIN) -> None:
        """`vector_rows_min`: rows are decoded one by one if fewer have the same table, schema version and kind."""
        self._reading = reading
        self._names = {(name[0].lower(), name[1].lower()): name for name in reading.fields.columns}
        self._readers: dict[tuple[int, int], RowReader | None] = {}
        self.schema = to_arrow_schema(change_schema(reading.fields, collect=reading.collect), timezone="UTC")
        self._vector_rows_min = vector_rows_min
        self._payloads: list[bytes] = []
        self._bytes = 0

    def add(self, payload: bytes) -> None:
        """Add a transaction; transactions must be added in upstream's order."""
        self._payloads.append(payload)
        self._bytes += len(payload)

    @property
    def is_full(self) -> bool:
        """Return whether the transactions added since the last call of `batch` should become a batch now."""
        return len(self._payloads) >= BATCH_TRANSACTIONS or self._bytes >= BATCH_BYTES

    def batch(self) -> pa.RecordBatch:
        """Return the changes added since the last call; there may be none. DecodeError, SchemaChanged and ValueUnfit
        name the table and the commit_ts of the first change that cannot be read."""
        payloads, self._payloads, self._bytes = self._payloads, [], 0
        try:
            found = self._batch(scan_all(payloads).rows)
        except BinlogError:
            self._raise_first(payloads)
            raise
        return changelog(found, self._reading.fields.key) if self._reading.changelog else found

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        """If several rows are bad, the error may be that of any of them."""
        ignored = self._reading.rules.ignored_ts
        if ignored:
            rows = rows.take(~np.isin(rows.commit_ts, np.array(ignored, rows.commit_ts.dtype)))
        parts = [part for group in _by_version(rows) for part in self._parts(group)]
        return _joined(parts, self.schema)

    def _parts(self, group: Rows) -> Iterator[Part]:
        """Return the rows of one table version, in parts."""
        reader = self._reader(int(group.table_id[0]), int(group.version[0]), int(group.commit_ts.min()))
        if reader is None:
            return
        for kind in (kind for kind in Kind if kind not in reader.ignored_kinds):
            rows = group.take(group.kind == int(kind))
            if len(rows):
                yield from reader.read(kind, rows, together_min=self._vector_rows_min)

    def _raise_first(self, payloads: Sequence[bytes]) -> None:
        """Raise the error of the first row that has one, in upstream's order."""
        scanned = scan_all([_first_bad(payloads, lambda some: self._batch(scan_all(some).rows))])
        rows = scanned.rows

        def chosen(places: Sequence[int]) -> Rows:
            return rows.take((rows.order >= places[0]) & (rows.order <= places[-1]))

        first = _first_bad(sorted(rows.order.tolist()), lambda places: self._batch(chosen(places)))
        self._batch(chosen([first]))

    def _reader(self, table_id: int, version: int, commit_ts: int) -> RowReader | None:
        key = (table_id, version)
        if key not in self._readers:
            self._readers[key] = self._reader_of(table_id, version, commit_ts)
        return self._readers[key]

    def _reader_of(self, table_id: int, version: int, commit_ts: int) -> RowReader | None:
        """Return the reader for a table id and schema version; None for a table that is not in the query."""
        reading = self._reading
        written = reading.watched.at(table_id, version)
        if written is None:
            return None
        if written.name is None:
            was = reading.watched.was(table_id, version)
            if was is not None and version > reading.begin_version and not reading.collect:
                raise SchemaChanged(".".join(was), "it was renamed", commit_ts)
            return None
        key = reading.fields.key if reading.changelog and version > reading.begin_version else ()
        if key and not identifies(key, written.info):
            raise SchemaChanged(".".join(written.name), "its key was changed", commit_ts)
        name = self._names.get((written.name[0].lower(), written.name[1].lower()))
        return None if name is None else RowReader(name, table_id, version, written.info, reading, self.schema)


def _first_bad(ordered: Sequence[_T], read: Callable[[Sequence[_T]], object]) -> _T:
    """Return the first element for which `read` raises BinlogError; the last one if there is none."""
    while len(ordered) > 1:
        half = ordered[: len(ordered) // 2]
        try:
            read(half)
            ordered = ordered[len(half) :]
        except BinlogError:
            ordered = half
    return ordered[0]


def _by_version(rows: Rows) -> Iterator[Rows]:
    """Yield the rows of each table id and schema version."""
    keys = np.unique(np.stack((rows.table_id, rows.version)), axis=1).T.tolist()
    for table_id, version in keys:
        yield rows if len(keys) == 1 else rows.take((rows.table_id == table_id) & (rows.version == version))


def _joined(parts: Sequence[Part], schema: pa.Schema) -> pa.RecordBatch:
    """Return the parts as one batch, in the rows' order."""
    if not parts:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    order = np.concatenate([part.rows.order for part in parts])
    by_order = np.argsort(order, kind="stable")
    commit_ts = np.concatenate([part.rows.commit_ts for part in parts]).astype(np.int64)
    start_ts = np.concatenate([part.rows.start_ts for part in parts]).astype(np.int64)
    seq = np.concatenate([part.rows.sequence for part in parts]).astype(np.int32)
    of = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.rows) for part in parts])

    def text(values: Sequence[str]) -> Any:
        return pa.array(values, pa.string()).take(pa.array(of[by_order]))

    def sorted_array(values: Any) -> Any:
        return pa.array(values[by_order])

    columns = [
        text([KIND_NAMES[part.kind] for part in parts]),
        sorted_array(commit_ts),
        sorted_array((commit_ts >> tso.LOGICAL_BITS) * 1000),
        sorted_array(start_ts),
        sorted_array(seq),
        text([part.name[0] for part in parts]),
        text([part.name[1] for part in parts]),
    ]
    taken = pa.array(by_order)
    images = [[part.before for part in parts], [part.after for part in parts], [part.added for part in parts]]
    for field, arrays in zip(list(schema)[len(columns) :], images, strict=False):
        found = [
            pa.nulls(len(p.rows), field.type) if one is None else one for p, one in zip(parts, arrays, strict=True)
        ]
        columns.append(pa.concat_arrays(found).take(taken))
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


_DELETE, _PREIMAGE, _INSERT, _POSTIMAGE = range(4)  # indexes of _CHANGE_TYPES
_CHANGE_TYPES = pa.array(["delete", "update_preimage", "insert", "update_postimage"])


def changelog(batch: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """Convert whole transactions to the shape "changelog": a row for each image, at most one change of a key in a
    transaction. `key`: the columns that identify rows; without, changes stay as upstream wrote them."""
    count = len(batch)
    images = pa.concat_arrays([batch.column(BEFORE), batch.column(AFTER)])
    at = np.arange(2 * count).reshape(2, count).T.ravel()  # in `images`: by change, the old image first
    at = at[images.is_valid().to_numpy(zero_copy_only=False)[at]]
    row, is_new = at % count, at >= count
    if key:
        told, commit_ts = images.take(pa.array(at)), batch.column("commit_ts").to_numpy()[row]
        for name in key:
            null = np.flatnonzero(pc.struct_field(told, name).is_null())
            if len(null):  # a date that Spark cannot hold, or a column that was left out under its former name
                table = ".".join(batch.column(part)[0].as_py() for part in ("schema", "table"))
                raise KeyUnfit(table, name, "is NULL", int(commit_ts[null[0]]))
        kept, olds, news = _net(told, commit_ts, is_new, key)
    else:
        olds = np.flatnonzero(row[1:] == row[:-1])
        kept, news = np.arange(len(at)), olds + 1
    types, place = np.where(is_new, _INSERT, _DELETE), 2 * np.arange(len(at))
    types[olds], types[news], place[olds] = _PREIMAGE, _POSTIMAGE, place[news] - 1
    order = kept[np.argsort(place[kept])]
    rows = pa.array(row[order])
    columns = [*images.take(pa.array(at[order])).flatten(), _CHANGE_TYPES.take(pa.array(types[order]))]
    columns += [batch.column(name).take(rows) for name in ("commit_ts", "commit_time")]
    return pa.RecordBatch.from_arrays(
        columns, names=[*(field.name for field in batch.schema.field(BEFORE).type), *CHANGELOG]
    )


def _net(images: Any, commit_ts: Ints, is_new: Mask, key: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """Return the indexes of images, which are in upstream's order, that are net changes of their key in their
    transaction, at most an old and a new one; and (old, new) of the keys that have both."""
    commit = np.cumsum(np.diff(commit_ts, prepend=commit_ts[:1]) != 0)
    # A key can change twice where a transaction has old and new images.
    mixed = ((np.bincount(commit, is_new) > 0) & (np.bincount(commit, ~is_new) > 0))[commit]
    chosen = np.flatnonzero(mixed)
    group, is_new = commit[chosen], is_new[chosen]
    for name in key:
        codes = pc.struct_field(images, name).take(pa.array(chosen)).dictionary_encode("encode").indices.to_numpy()
        group = np.unique(group * len(group) + codes, return_inverse=True)[1]
    order = np.argsort(group, kind="stable")

    def followed(first_is_new: bool) -> Ints:
        """Return the places in `order` of images that the next one, of the other sort, has the same key as."""
        one, other = order[:-1], order[1:]
        return np.flatnonzero(
            (group[one] == group[other]) & (is_new[one] == first_is_new) & (is_new[other] != first_is_new)
        )

    passing = followed(first_is_new=True)  # the transaction wrote and removed them
    alone = np.bincount(group)[group[order[passing]]] == 2
    # Of two rows that exchange their keys the new one of a key may come first. Longer chains are of one row.
    exchanged = [n for n in passing[alone].tolist() if images[chosen[order[n]]] != images[chosen[order[n + 1]]]]
    for n in exchanged:
        order[[n, n + 1]] = order[[n + 1, n]]
    passing = np.setdiff1d(passing, exchanged)
    order = np.delete(order, np.concatenate((passing, passing + 1)))
    olds = followed(first_is_new=False)
    kept = np.concatenate((np.flatnonzero(~mixed), chosen[order]))
    return kept, chosen[order[olds]], chosen[order[olds + 1]]
