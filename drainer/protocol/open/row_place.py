"""Where a row is stored upstream, according to the key of its event: its integer handle, and its physical partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal

from drainer.changes.decode import Columns
from drainer.protocol.table import Column, Table
from drainer.row.partition.locate import PartitionUnknown, Values, locator
from drainer.row.type_class import TypeClass

RowIds = Callable[[Columns], Any]
PartitionIds = Callable[[Columns], Any]


def row_ids(table: Table) -> RowIds | None:
    """Return a function from an image to the handles of its rows, if the integer primary key is the handle. Otherwise
    None: binlogs do not contain the handle."""
    handle = table.info.handle_column
    if handle is None or handle.name not in table.column_indexes:  # a column selector may leave it out
        return None
    column_index = table.column_indexes[handle.name]

    def of(columns: Columns) -> Any:
        handles = columns[column_index]
        return handles.view(pa.int64()) if handles.type == pa.uint64() else handles

    return of


def partition_ids(table: Table) -> PartitionIds | None:
    """Return a function from an image to the partition ids of its rows, NULL if the id cannot be computed (see
    drainer.row.partition). None if the table is not partitioned, or if no id can ever be computed."""
    if not table.is_partitioned:
        return None
    try:
        locate = locator(table.info)
    except PartitionUnknown:
        return None

    def one(values: Values) -> int | None:
        try:
            return locate(values)
        except PartitionUnknown:
            return None

    def of(columns: Columns) -> Any:
        row = _Row(table, columns)
        found = []
        for column_index in range(len(columns[0])):
            row.at = column_index
            found.append(one(row))
        return pa.array(found, pa.int64())

    return of


class _Row(dict[int, Datum]):
    """The datums of the row at position `at`, by column id. A column is unpacked on first access."""

    at = 0

    def __init__(self, table: Table, columns: Columns) -> None:
        super().__init__()
        self._column_indexes = {column.info.id: column_index for column_index, column in enumerate(table.columns)}
        # The row has these columns, but a column selector leaves them out. Their values are unknown, unlike those of
        # columns that the row does not have.
        public = {column.id for column in table.info.public_columns if not column.is_virtual}
        self._left_out = public - self._column_indexes.keys()
        self._table = table
        self._columns = columns
        self._unpacked: dict[int, list[Datum]] = {}

    def __contains__(self, column_id: object) -> bool:
        return column_id in self._column_indexes or column_id in self._left_out

    def __getitem__(self, column_id: int) -> Datum:
        values = self._unpacked.get(column_id)
        if values is None:
            column_index = self._column_indexes[column_id]
            values = self._unpacked[column_id] = _datums(self._table.columns[column_index], self._columns[column_index])
        return values[self.at]


def _datums(column: Column, decoded_values: Any) -> list[Datum]:
    values: list[Datum] = decoded_values.to_pylist()
    if column.column_type.type_class is not TypeClass.DECIMAL:
        return values
    kind = column.column_type.kind
    return [None if v is None else Decimal(str(v), kind.flen, max(kind.decimal, 0)) for v in values]


def member(name: bytes, numbers: Any, *, omitted: int | None) -> Any:
    """Return `,"name":5` for each row, or nothing if the number is NULL or `omitted`."""
    text = pc.binary_join_element_wise(
        pa.scalar(b',"' + name + b'":', pa.binary()),
        numbers.cast(pa.string()).cast(pa.binary()),
        pa.scalar(b"", pa.binary()),
    )
    if omitted is not None:
        text = pc.if_else(pc.equal(numbers, omitted), pa.scalar(b"", pa.binary()), text)
    return pc.fill_null(text, b"")
