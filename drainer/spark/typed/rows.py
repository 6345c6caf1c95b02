"""Converts pulled binlogs into Arrow record batches of the typed change stream."""

from __future__ import annotations

import pyarrow as pa
from binlog.cluster import tso
from pyspark.sql.pandas.types import to_arrow_schema

from drainer.batch.work import Kind
from drainer.row.transaction import Scanned, rows, start_ts_of
from drainer.spark.typed.fields import ADDED, AFTER, BEFORE, change_schema
from drainer.spark.typed.reading import Reading, SchemaChanged
from drainer.spark.typed.row_reader import Added, Image, RowReader

_KINDS = {Kind.INSERT: "insert", Kind.UPDATE: "update", Kind.DELETE: "delete"}
_HEAD_COLUMNS = 7


class Changes:
    """Collects the changes of the query's tables into record batches. Not thread-safe."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._names = {(name[0].lower(), name[1].lower()): name for name in reading.fields.columns}
        self._readers: dict[tuple[int, int], RowReader | None] = {}
        self.schema = to_arrow_schema(change_schema(reading.fields, collect=reading.collect), timezone="UTC")
        self._clear()

    def _clear(self) -> None:
        self._head: list[tuple[object, ...]] = []
        self._before: list[Image | None] = []
        self._after: list[Image | None] = []
        self._added: list[Added | None] = []

    def __len__(self) -> int:
        return len(self._head)

    def add(self, found: Scanned) -> None:
        """Add the changes of one transaction in order. DecodeError and SchemaChanged name the table and the
        commit_ts."""
        commit_ts, start_ts = found[0], 0
        for seq, (version, table_id, kind, row) in enumerate(rows(found)):
            reader = self._reader(table_id, version, commit_ts)
            if reader is None:
                continue
            before, after, added = reader.read(kind, row, commit_ts)
            start_ts = start_ts or start_ts_of(found[1])
            micros = tso.physical_ms(commit_ts) * 1000
            self._head.append((_KINDS[kind], commit_ts, micros, start_ts, seq, *reader.name))
            self._before.append(before)
            self._after.append(after)
            self._added.append(added)

    def batch(self) -> pa.RecordBatch:
        """The changes added since the last call."""
        columns = list(zip(*self._head, strict=True)) if self._head else [()] * _HEAD_COLUMNS
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=False)]
        for name, images in ((BEFORE, self._before), (AFTER, self._after)):
            arrays.append(_struct(self.schema.field(name).type, images))
        if self._reading.collect:
            arrays.append(pa.array(self._added, self.schema.field(ADDED).type))
        found = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._clear()
        return found

    def _reader(self, table_id: int, version: int, commit_ts: int) -> RowReader | None:
        key = (table_id, version)
        if key not in self._readers:
            self._readers[key] = self._reader_of(table_id, version, commit_ts)
        return self._readers[key]

    def _reader_of(self, table_id: int, version: int, commit_ts: int) -> RowReader | None:
        """The reader for a table id and schema version; None for a table that is not in the query."""
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


def _struct(kind: pa.StructType, images: list[Image | None]) -> pa.StructArray:
    absent = pa.array([image is None for image in images], pa.bool_())
    empty = (None,) * kind.num_fields
    values = list(zip(*[image or empty for image in images], strict=True)) if images else [()] * kind.num_fields
    fields = [kind.field(n) for n in range(kind.num_fields)]
    arrays = [pa.array(column, field.type) for column, field in zip(values, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=absent)
