"""Rows of Python values to rows of bytes, with a bound table's TableInfo of its version. Pure.

An insert fills a column that the row leaves out with its default, or NULL; an update and a delete must give every
column, for both carry the whole row and this SDK reads nothing back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime

from binlog.tidb.column import ColumnInfo
from binlog.tidb.datum import Datum
from binlog.tidb.key import record_key
from binlog.tidb.row import decode_insert, encode_delete, encode_insert, encode_update
from binlog.tidb.table import TableInfo

from pumpclient.sdk.defaults import CURRENT_TIMESTAMP, now_datum, stored_default
from pumpclient.sdk.errors import RowRejected, ValueRejected
from pumpclient.sdk.values import Encoder, encoder

RowValues = Mapping[str, object]
Datums = dict[int, Datum]


class RowCodec:
    """Encodes the rows of one TableInfo. ValueRejected and RowRejected name table and column."""

    def __init__(self, schema: str, info: TableInfo) -> None:
        self.info = info
        self._where = f"{schema}.{info.name}"
        self._columns: dict[str, tuple[ColumnInfo, Encoder]] = {}
        self._generated = frozenset(c.name for c in info.public_columns if c.is_generated)
        for column in info.public_columns:
            if column.hidden or column.is_generated:
                continue
            try:
                self._columns[column.name] = (column, encoder(column.type))
            except ValueError as error:
                raise RowRejected(f"{self._where}.{column.name}: {error}") from None
        self._clustered = frozenset(
            part.name
            for index in (info.primary_index(),)
            if index is not None and (info.pk_is_handle or info.is_common_handle)
            for part in index.columns
        )
        self.needs_rowid = not info.pk_is_handle and not info.is_common_handle

    def insert(self, row: RowValues, *, rowid: int) -> bytes:
        values = self._values(row, fill=True)
        return encode_insert(self.info, values, rowid=rowid if self.needs_rowid else None)

    def update(self, old: RowValues, new: RowValues) -> bytes | None:
        """None when nothing changes (X-12)."""
        before, after = self._values(old, fill=False), self._values(new, fill=False)
        return None if before == after else encode_update(self.info, before, after)

    def moves(self, old: RowValues, new: RowValues) -> bool:
        """The clustered key changes: TiDB then writes a delete and an insert (row format 2.2)."""
        return any(old.get(name) != new.get(name) for name in self._clustered)

    def delete(self, row: RowValues) -> bytes:
        return encode_delete(self.info, self._values(row, fill=False))

    def key(self, inserted: bytes) -> bytes:
        """The record key of an encoded insert: what a transaction's prewrite_key is."""
        handle, _ = decode_insert(self.info, inserted)
        if self.info.is_common_handle:
            return record_key(self.info.id, handle)
        number = handle[0]
        assert isinstance(number, int)
        return record_key(self.info.id, number)

    def _values(self, row: RowValues, *, fill: bool) -> Datums:
        for name in row:
            if name not in self._columns:
                why = "is generated, it cannot be written" if name in self._generated else "no such column"
                raise RowRejected(f"{self._where}.{name}: {why}")
        values: Datums = {}
        for name, (column, encode) in self._columns.items():
            if name in row:
                values[column.id] = self._value(column, encode, row[name])
            elif fill:
                values[column.id] = self._default(column)
            else:
                raise RowRejected(f"{self._where}.{name}: missing; an update or delete gives every column")
        return values

    def _value(self, column: ColumnInfo, encode: Encoder, value: object) -> Datum:
        if value is None:
            if column.is_not_null:
                raise ValueRejected(self._where, column.name, None, "the column is NOT NULL")
            return None
        try:
            return encode(value)
        except ValueError as error:
            raise ValueRejected(self._where, column.name, value, str(error)) from None

    def _default(self, column: ColumnInfo) -> Datum:
        if column.default == CURRENT_TIMESTAMP:
            return now_datum(column.type, datetime.now(UTC))
        if column.default is not None:
            return stored_default(column.type, column.default, column.default_bit)
        if column.is_not_null:
            raise RowRejected(f"{self._where}.{column.name}: missing, NOT NULL and without a default")
        return None


@functools.lru_cache(maxsize=4096)
def _cached(schema: str, table_id: int, version: int, holder: _Identity) -> RowCodec:
    return RowCodec(schema, holder.info)


class _Identity:
    """Carries a TableInfo past a cache's hash: id and version already say which it is."""

    __slots__ = ("info",)

    def __init__(self, info: TableInfo) -> None:
        self.info = info

    def __hash__(self) -> int:
        return self.info.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.info is other.info


def codec_for(schema: str, info: TableInfo, version: int) -> RowCodec:
    """The codec of a table as of a version, made once."""
    return _cached(schema, info.id, version, _Identity(info))
