"""Encodes rows of Python values with the TableInfo of a bound table. Pure.

An insert gives columns that the row leaves out their default, or NULL, and returns the complete row as stored. For an
update or a delete, the old row must contain every column, because the binlog contains it and the SDK cannot read it.
Columns that the new row of an update leaves out keep their old value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from binlog.tidb.datum import Datum
from binlog.tidb.key import record_key
from binlog.tidb.row import decode_insert, encode_delete, encode_insert, encode_update
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import TIMES

from pumpclient.sdk.errors import RowRejected, ValueRejected
from pumpclient.sdk.table import Bound
from pumpclient.sdk.values import CURRENT_TIMESTAMP, Decode, Encoder, decoder, encoder, now_datum, stored_default

RowValues = Mapping[str, object]
StoredRow = dict[str, object]
Datums = dict[int, Datum]


@dataclass(frozen=True, slots=True)
class Update:
    """An encoded update; if the clustered key `moves`, a delete and an insert (F-02), whose key is the row's."""

    changed: bytes = b""
    deleted: bytes = b""
    inserted: bytes = b""

    @property
    def moves(self) -> bool:
        return not self.changed


class RowCodec:
    """Encodes the rows of one TableInfo. ValueRejected and RowRejected name the table and the column."""

    def __init__(self, schema: str, info: TableInfo) -> None:
        self.info = info
        self._where = f"{schema}.{info.name}"
        self._columns: dict[str, tuple[ColumnInfo, Encoder, Decode]] = {}
        self._generated = frozenset(c.name for c in info.public_columns if c.is_generated)
        for column in info.public_columns:
            if column.hidden or column.is_generated:
                continue
            try:
                self._columns[column.name] = (column, encoder(column.type), decoder(column.type))
            except ValueError as error:
                raise RowRejected(f"{self._where}.{column.name}: {error}") from None
        self._clustered = frozenset(
            info.columns[part.offset].id
            for index in (info.primary_index(),)
            if index is not None and (info.pk_is_handle or info.is_common_handle)
            for part in index.columns
        )
        self.needs_rowid = not info.pk_is_handle and not info.is_common_handle

    def insert(self, row: RowValues, *, rowid: int) -> tuple[bytes, StoredRow]:
        """Return the encoded row, and every column with its stored value."""
        values = self._values(row, fill=True)
        encoded = encode_insert(self.info, values, rowid=rowid if self.needs_rowid else None)
        return encoded, self._stored(values)

    def update(self, old: RowValues, new: RowValues) -> Update | None:
        """Encode an update; None if nothing changes (X-12). Columns that `new` leaves out keep their old value."""
        before = self._values(old, fill=False)
        after = before | self._given(new)
        if before == after:
            return None
        if any(before.get(column_id) != after.get(column_id) for column_id in self._clustered):
            inserted = encode_insert(self.info, after, rowid=None)
            return Update(deleted=encode_delete(self.info, before), inserted=inserted)
        return Update(changed=encode_update(self.info, before, after))

    def delete(self, row: RowValues) -> bytes:
        return encode_delete(self.info, self._values(row, fill=False))

    def key(self, inserted: bytes) -> bytes:
        """Return the record key of an encoded insert, which serves as the transaction's prewrite_key."""
        handle, _ = decode_insert(self.info, inserted)
        if self.info.is_common_handle:
            return record_key(self.info.id, handle)
        number = handle[0]
        assert isinstance(number, int)
        return record_key(self.info.id, number)

    def _values(self, row: RowValues, *, fill: bool) -> Datums:
        """Return the values of every column. With `fill`, columns that the row leaves out get their default."""
        values = self._given(row)
        for name, (column, _, _) in self._columns.items():
            if name in row:
                continue
            if not fill:
                raise RowRejected(f"{self._where}.{name}: missing; an old or deleted row must contain every column")
            values[column.id] = self._default(column)
        return values

    def _given(self, row: RowValues) -> Datums:
        """Return the values of the columns that the row contains."""
        if not isinstance(row, Mapping):
            raise RowRejected(f"{self._where}: a row is a mapping of column names to values, not {row!r:.80}")
        values: Datums = {}
        for name, value in row.items():
            field = self._columns.get(name)
            if field is None:
                why = "is generated, it cannot be written" if name in self._generated else "no such column"
                raise RowRejected(f"{self._where}.{name}: {why}")
            values[field[0].id] = self._value(field[0], field[1], value)
        return values

    def _stored(self, values: Datums) -> StoredRow:
        return {
            name: None if (datum := values[column.id]) is None else decode(datum)
            for name, (column, _, decode) in self._columns.items()
        }

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
        if column.default == CURRENT_TIMESTAMP and column.type.tp in TIMES:
            return now_datum(column.type, datetime.now(UTC))
        if column.default is not None:
            return stored_default(column.type, column.default, column.default_bit)
        if column.is_not_null:
            raise RowRejected(f"{self._where}.{column.name}: missing, NOT NULL and without a default")
        return None


@functools.lru_cache(maxsize=4096)
def codec_for(bound: Bound) -> RowCodec:
    """Return the codec of a table at a schema version. It is made once and cached."""
    return RowCodec(bound.schema, bound.info)
