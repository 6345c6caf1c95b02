"""Converts pulled binlogs into Arrow record batches of the typed change stream."""

from __future__ import annotations

import pyarrow as pa
from binlog.cluster import tso
from binlog.errors import BinlogError
from pyspark.sql.pandas.types import to_arrow_schema

from drainer.changes.decode import VECTOR_ROWS_MIN
from drainer.row.transaction import Scanned, rows, start_ts_of
from drainer.spark.typed.column_batch import KIND_NAMES, ColumnBatches, struct_of
from drainer.spark.typed.fields import ADDED, AFTER, BEFORE, change_schema
from drainer.spark.typed.reading import Reading, SchemaChanged
from drainer.spark.typed.row_reader import Added, Image, RowReader

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
