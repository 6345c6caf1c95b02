"""Converts pulled binlogs into Arrow record batches of the typed change stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from binlog.cluster import tso
from binlog.errors import BinlogError
from pyspark.sql.pandas.types import to_arrow_schema

from drainer.batch.work import Kind
from drainer.changes.decode import VECTOR_ROWS_MIN
from drainer.changes.reading import RowReader as BytesReader
from drainer.changes.scan import Rows, scan_all
from drainer.changes.vector import Mask
from drainer.row.layout import Layout, layout_of
from drainer.row.transaction import Scanned, rows, start_ts_of
from drainer.schema.view import TableAt
from drainer.spark.typed.columns import ConvertColumn, arrow_type, column_converter
from drainer.spark.typed.fields import ADDED, AFTER, BEFORE, Reading, SchemaChanged, change_schema
from drainer.spark.typed.row_reader import Added, FieldSource, Image, RowReader

# Record batches of the typed change stream from the rows of many transactions, decoded column by column.
#
# Rows in TiDB's usual encoding are decoded together, per table, schema version and kind (drainer.changes.reading);
# every other row is decoded by itself (RowReader.read). The result is that of RowReader.read for every row.
KIND_NAMES = {Kind.INSERT: "insert", Kind.UPDATE: "update", Kind.DELETE: "delete"}

ReaderOf = Callable[[int, int, int], RowReader | None]  # of a table id, schema version and commit_ts


@dataclass(frozen=True, slots=True)
class _Part:
    """Changes of one kind, written under one table version. `before`, `after`: struct arrays; `added`: map array."""

    rows: Rows
    kind: Kind
    name: tuple[str, str]
    before: Any
    after: Any
    added: Any


class ColumnBatches:
    """Makes record batches of `schema`. Caches a reader for each table version; not thread-safe."""

    def __init__(
        self, schema: pa.Schema, reader_of: ReaderOf, *, zero_dates_fail: bool, vector_rows_min: int = VECTOR_ROWS_MIN
    ) -> None:
        self._schema = schema
        self._reader_of = reader_of
        self._zero_dates_fail = zero_dates_fail
        self._vector_rows_min = vector_rows_min
        self._readers: dict[tuple[int, int], _VersionReader | None] = {}

    def batch(self, payloads: Sequence[bytes]) -> pa.RecordBatch:
        """Return the changes of these binlogs in upstream's order. Raises the errors of Changes.batch, and
        pyarrow.ArrowInvalid or OverflowError for a value beyond its column's type. If several rows are bad, the error
        may be that of any of them."""
        parts = [part for group in _by_version(scan_all(payloads).rows) for part in self._parts(group)]
        return _joined(parts, self._schema)

    def _parts(self, group: Rows) -> Iterator[_Part]:
        """Return the rows of one table version, in parts."""
        table_id, version, commit_ts = int(group.table_id[0]), int(group.version[0]), int(group.commit_ts.min())
        reader = self._reader_of(table_id, version, commit_ts)
        if reader is None:
            return
        for kind in Kind:
            rows = group.take(group.kind == int(kind))
            together = self._version_reader(table_id, version, reader) if len(rows) >= self._vector_rows_min else None
            if together is not None:
                decoded, before, after = together.read(kind, rows)
                if decoded.any():
                    yield self._part(reader, kind, rows.take(decoded), before, after)
                rows = rows.take(~decoded)
            if len(rows):
                yield self._one_by_one(reader, kind, rows)

    def _version_reader(self, table_id: int, version: int, reader: RowReader) -> _VersionReader | None:
        key = (table_id, version)
        if key not in self._readers:
            self._readers[key] = _VersionReader.of(reader, self._schema, zero_dates_fail=self._zero_dates_fail)
        return self._readers[key]

    def _part(self, reader: RowReader, kind: Kind, rows: Rows, before: Any, after: Any) -> _Part:
        absent = [pa.nulls(len(rows), self._schema.field(name).type) for name in (BEFORE, AFTER)]
        added = pa.nulls(len(rows), self._schema.field(ADDED).type) if ADDED in self._schema.names else None
        before, after = (absent[0] if before is None else before), (absent[1] if after is None else after)
        return _Part(rows, kind, reader.name, before, after, added)

    def _one_by_one(self, reader: RowReader, kind: Kind, rows: Rows) -> _Part:
        before: list[Image | None] = []
        after: list[Image | None] = []
        added: list[Added | None] = []
        for number, commit_ts in enumerate(rows.commit_ts.tolist()):
            old, new, more = reader.read(kind, rows.row(number), commit_ts)
            before.append(old)
            after.append(new)
            added.append(more)
        olds, news = (struct_of(self._schema.field(n).type, of) for n, of in ((BEFORE, before), (AFTER, after)))
        more_array = pa.array(added, self._schema.field(ADDED).type) if ADDED in self._schema.names else None
        return _Part(rows, kind, reader.name, olds, news, more_array)


class _VersionReader:
    """Decodes rows of one table version together."""

    def __init__(
        self, layout: Layout, reader: BytesReader, sources: Sequence[FieldSource], kind: Any, *, zero_dates_fail: bool
    ) -> None:
        self._reader = reader
        self._struct = kind
        place = {target.id: n for n, target in enumerate(layout.targets)}
        # By field: a target of the layout and its converter, or a value that all rows have.
        self._fields: list[tuple[int, ConvertColumn] | pa.Scalar] = []
        for source, field in zip(sources, kind, strict=True):
            if source.column is None:
                self._fields.append(pa.array([source.constant], field.type)[0])
            else:
                convert = column_converter(source.column.type, zero_dates_fail=zero_dates_fail)
                assert arrow_type(source.column.type) == field.type
                self._fields.append((place[source.column.id], convert))
        self._wanted = tuple(dict.fromkeys(field[0] for field in self._fields if isinstance(field, tuple)))

    @classmethod
    def of(cls, reader: RowReader, schema: pa.Schema, *, zero_dates_fail: bool) -> _VersionReader | None:
        """Make a reader. None if the version's rows can only be decoded one by one."""
        sources = reader.field_sources()
        if sources is None:
            return None
        info = reader.info
        layout = layout_of(TableAt(info.id, reader.name[0], info, info, 0, 0))
        decoder = BytesReader.of(layout)
        if decoder is None:
            return None
        return cls(layout, decoder, sources, schema.field(AFTER).type, zero_dates_fail=zero_dates_fail)

    def read(self, kind: Kind, rows: Rows) -> tuple[Mask, Any, Any]:
        """Return (rows in the usual encoding, their old images, their new images). Images are struct arrays, None for a
        kind without such an image."""
        buffer, begin, end, wanted = rows.buffer, rows.begin, rows.end, self._wanted
        if kind is Kind.INSERT:
            decoded, new = self._reader.insert(buffer, begin, end, wanted)
            return decoded, None, self._image(new, int(decoded.sum()))
        if kind is Kind.DELETE:
            decoded, old = self._reader.delete(buffer, begin, end, wanted)
            return decoded, self._image(old, int(decoded.sum())), None
        decoded, old, new = self._reader.update(buffer, begin, end, wanted, wanted)
        count = int(decoded.sum())
        return decoded, self._image(old, count), self._image(new, count)

    def _image(self, columns: Sequence[Any], count: int) -> Any:
        by_target = dict(zip(self._wanted, columns, strict=True))
        arrays = []
        for field in self._fields:
            if isinstance(field, tuple):
                target, convert = field
                arrays.append(convert(by_target[target]))
            else:
                arrays.append(pa.repeat(field, count))
        return pa.StructArray.from_arrays(arrays, fields=list(self._struct))


def _by_version(rows: Rows) -> Iterator[Rows]:
    """Yield the rows of each table id and schema version."""
    keys = np.unique(np.stack((rows.table_id, rows.version)), axis=1).T.tolist()
    for table_id, version in keys:
        yield rows if len(keys) == 1 else rows.take((rows.table_id == table_id) & (rows.version == version))


def struct_of(kind: pa.StructType, images: Sequence[Image | None]) -> pa.StructArray:
    """Return a struct array of rows' values; None becomes a null struct."""
    absent = pa.array([image is None for image in images], pa.bool_())
    empty = (None,) * kind.num_fields
    values = list(zip(*[image or empty for image in images], strict=True)) if images else [()] * kind.num_fields
    fields = [kind.field(n) for n in range(kind.num_fields)]
    arrays = [pa.array(column, field.type) for column, field in zip(values, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=absent)


def _joined(parts: Sequence[_Part], schema: pa.Schema) -> pa.RecordBatch:
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
    images = [[part.before for part in parts], [part.after for part in parts]]
    if ADDED in schema.names:
        images.append([part.added for part in parts])
    columns += [pa.concat_arrays(arrays).take(taken) for arrays in images]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


BATCH_TRANSACTIONS = 10_000
BATCH_BYTES = 2 << 20
_HEAD_COLUMNS = 7


class Changes:
    """Collects the changes of the query's tables into record batches. Not thread-safe."""

    def __init__(self, reading: Reading, *, vector_rows_min: int = VECTOR_ROWS_MIN) -> None:
        """`vector_rows_min`: rows are decoded one by one if fewer have the same table, schema version and kind."""
        self._reading = reading
        self._names = {(name[0].lower(), name[1].lower()): name for name in reading.fields.columns}
        self._readers: dict[tuple[int, int], RowReader | None] = {}
        self.schema = to_arrow_schema(change_schema(reading.fields, collect=reading.collect), timezone="UTC")
        self._columns = ColumnBatches(
            self.schema, self._reader, zero_dates_fail=reading.zero_dates_fail, vector_rows_min=vector_rows_min
        )
        self._vector_rows_min = vector_rows_min
        self._transactions: list[Scanned] = []
        self._bytes = 0

    def add(self, transaction: Scanned) -> None:
        """Add a transaction; transactions must be added in upstream's order."""
        is_single, table_id = bool(transaction[2]), transaction[4]
        if is_single and table_id not in self._reading.watched.ids:
            return
        self._transactions.append(transaction)
        self._bytes += len(transaction[1])

    @property
    def is_full(self) -> bool:
        """Return whether the transactions added since the last call of `batch` should become a batch now."""
        return len(self._transactions) >= BATCH_TRANSACTIONS or self._bytes >= BATCH_BYTES

    def batch(self) -> pa.RecordBatch:
        """Return the changes added since the last call; there may be none. DecodeError, SchemaChanged and ValueUnfit
        name the table and the commit_ts of the first change that cannot be read."""
        transactions, self._transactions, self._bytes = self._transactions, [], 0
        may_be_many = len(transactions) >= self._vector_rows_min or any(
            not transaction[2] for transaction in transactions
        )
        if may_be_many:
            try:
                return self._columns.batch([transaction[1] for transaction in transactions])
            except (BinlogError, pa.ArrowInvalid, OverflowError):
                pass  # decoded again below, in order, for an error that names the first such row
        return self._one_by_one(transactions)

    def _one_by_one(self, transactions: list[Scanned]) -> pa.RecordBatch:
        head: list[tuple[object, ...]] = []
        befores: list[Image | None] = []
        afters: list[Image | None] = []
        collected: list[Added | None] = []
        for transaction in transactions:
            commit_ts, start_ts = transaction[0], 0
            for seq, (version, table_id, kind, row) in enumerate(rows(transaction)):
                reader = self._reader(table_id, version, commit_ts)
                if reader is None:
                    continue
                before, after, added = reader.read(kind, row, commit_ts)
                start_ts = start_ts or start_ts_of(transaction[1])
                micros = tso.physical_ms(commit_ts) * 1000
                head.append((KIND_NAMES[kind], commit_ts, micros, start_ts, seq, *reader.name))
                befores.append(before)
                afters.append(after)
                collected.append(added)
        columns = list(zip(*head, strict=True)) if head else [()] * _HEAD_COLUMNS
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=False)]
        for name, images in ((BEFORE, befores), (AFTER, afters)):
            arrays.append(struct_of(self.schema.field(name).type, images))
        if self._reading.collect:
            arrays.append(pa.array(collected, self.schema.field(ADDED).type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

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
        name = self._names.get((written.name[0].lower(), written.name[1].lower()))
        return None if name is None else RowReader(name, table_id, version, written.info, self._reading)
