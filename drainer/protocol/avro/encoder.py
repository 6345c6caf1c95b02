"""Encodes TiCDC's Avro. It has no batches, no old rows (except with `avro_output_old_row`), and no handle-only
messages.

The fields of a row's checksum are written empty: TiDB stores checksums in the rows of its storage, and binlogs do not
contain them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from math import isfinite
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Words
from drainer.protocol.avro import blocks
from drainer.protocol.avro.column import pieces_of
from drainer.protocol.avro.schema import Field, TableSchemas, compact_json, key_subject, table_schemas, value_subject
from drainer.protocol.avro.types import twos_complement
from drainer.protocol.column_text import text_of
from drainer.protocol.encoded_columns import EncodedColumns, null_column, rows_of
from drainer.protocol.encoder import CompiledTables, Ddl, DdlScope, EncodedRow, Message
from drainer.protocol.errors import EncodeError, ProtocolConfigError, SchemaIdMissing, refused
from drainer.protocol.option_rules import check_checksums, check_choices
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.row_messages import OneRowMessages
from drainer.protocol.schema_ids import RequiredSchema, SchemaIds, header_of
from drainer.protocol.table import Table
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.text import bit_number

# Encodes one value as Avro, for calls with a few rows, where arrays cost more than they save. Pure.
#
# Writes the same bytes and refuses the same values as drainer.protocol.avro.column.
Write = Callable[[Any], bytes]

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_ROUND: Final = 1 << 31
_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))
_REALS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


def varint(number: int) -> bytes:
    """Encode a number as Avro's int or long. An unsigned 64-bit number is encoded as the signed number with the same
    bits."""
    raw = ((number << 1) ^ -(number >> 63 & 1)) & _MASK
    if raw < 128:
        return _ONE_BYTE[raw]
    found = bytearray()
    while raw > 0x7F:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    found.append(raw)
    return bytes(found)


def counted(data: bytes) -> bytes:
    """Return the data with its length in front."""
    return varint(len(data)) + data


def writer_of(field: Field, column_type: ColumnType, zone: tzinfo) -> Write:
    """Return the function that encodes a decoded value, None for NULL. The function raises DecodeError for a value that
    Avro or the column cannot hold."""
    write = _writer(field, column_type, zone)
    if field.null_first is None:
        return lambda value: _not_null(value) if value is None else write(value)
    branch, null = (b"\2", b"\0") if field.null_first else (b"\0", b"\2")
    return lambda value: null if value is None else branch + write(value)


def _not_null(value: None) -> bytes:
    raise DecodeError("value", offset=0, detail="NULL in a column that is NOT NULL")


def _writer(field: Field, column_type: ColumnType, zone: tzinfo) -> Write:
    type_class, primitive = column_type.type_class, field.type.primitive
    if field.type.precision is not None:
        return _decimal(field.type.precision, field.type.scale or 0)
    if primitive == "int":
        return _int
    if primitive == "long":
        return varint
    if primitive in _REALS:
        return _real(primitive)
    if type_class is TypeClass.BIT:
        width = max(column_type.kind.flen, 1)
        return lambda value: _bit(value, width)
    if type_class is TypeClass.BYTES:
        return counted
    if type_class is TypeClass.INT:
        return lambda value: counted(b"%d" % value)
    text = text_of(column_type, zone)
    return lambda value: counted(text(value).encode())


def _int(value: int) -> bytes:
    if not -_ROUND <= value < _ROUND:
        raise DecodeError("integer", offset=0, detail="beyond 32 bits")
    return varint(value)


def _real(primitive: str) -> Write:
    column_type = _REALS[primitive]

    def write(value: float) -> bytes:
        try:
            if isfinite(value):
                return column_type.pack(value)
        except OverflowError:
            pass
        raise DecodeError(primitive, offset=0, detail="no number, or beyond its range")

    return write


def _bit(value: int, width: int) -> bytes:
    bit_number(value, width)
    return counted(value.to_bytes(max(1, (value.bit_length() + 7) >> 3), "big"))


def _decimal(precision: int, scale: int) -> Write:
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def write(text: str) -> bytes:
        try:
            number = int(Decimal(text).quantize(unit, context=context).scaleb(scale, context=context))
        except (InvalidOperation, Inexact, ValueError, OverflowError):
            raise DecodeError("decimal", offset=0, detail=f"{text!r} is no DECIMAL({precision},{scale})") from None
        return counted(twos_complement(number))

    return write


# Encodes rows of one table as bytes, from columns: with arrays, or value by value for a few rows. Pure.
# Fewer rows than this are written one by one: arrays cost some 80 µs a column and call, however few rows there are, and
# a value a microsecond (python -m bench.avro).
VECTOR_ROWS_MIN: Final = 100
Pieces = list[Any]


class Rows(Protocol):
    """Encodes pieces of every row, which the caller joins in an order of its choice. The type of a piece depends on the
    implementation."""

    def column(self, column_index: int, array: Any) -> Pieces:
        """Encode a column of decoded values. Raises DecodeError, which does not name the row."""
        ...

    def constant(self, data: bytes, rows: int) -> Pieces: ...

    def longs(self, numbers: Words) -> Pieces: ...

    def joined(self, pieces: Pieces, rows: int) -> Any:
        """Concatenate the pieces of each row. Return the rows as `large_binary`."""
        ...


class Many:
    """Encodes with arrays."""

    def __init__(self, fields: Sequence[Field], column_types: Sequence[ColumnType], zone: tzinfo) -> None:
        self._fields, self._column_types, self._zone = fields, column_types, zone

    def column(self, column_index: int, array: Any) -> Pieces:
        return pieces_of(self._fields[column_index], self._column_types[column_index], array, self._zone)

    def constant(self, data: bytes, rows: int) -> Pieces:
        return [blocks.constant(data, rows)]

    def longs(self, numbers: Words) -> Pieces:
        return [blocks.varints(numbers.view(np.int64))]

    def joined(self, pieces: Pieces, rows: int) -> Any:
        return blocks.joined(pieces, rows)


class Few:
    """Encodes value by value."""

    def __init__(self, fields: Sequence[Field], column_types: Sequence[ColumnType], zone: tzinfo) -> None:
        self._writers = [
            writer_of(field, column_type, zone) for field, column_type in zip(fields, column_types, strict=True)
        ]

    def column(self, column_index: int, array: Any) -> Pieces:
        return [list(map(self._writers[column_index], array.to_pylist()))]

    def constant(self, data: bytes, rows: int) -> Pieces:
        return [[data] * rows]

    def longs(self, numbers: Words) -> Pieces:
        return [list(map(varint, numbers.tolist()))]

    def joined(self, pieces: Pieces, rows: int) -> Any:
        return pa.array(list(map(b"".join, zip(*pieces, strict=True))), pa.large_binary())


_OPS: Final = {Kind.INSERT: b"\x02c", Kind.UPDATE: b"\x02u", Kind.DELETE: b"\x02d"}
_PHYSICAL_SHIFT: Final = np.uint64(18)
_NO_CHECKSUM: Final = b"\0\0\0"  # an empty text, false, version 0
DDL_LEAD: Final = b"\x01"
RESOLVED_LEAD: Final = b"\x02"


@dataclass(frozen=True)
class AvroEncoder(OneRowMessages):
    """Encodes Avro. `ids`: the ids of the registered schemas. `topic`: the topic of the tables that are encoded; names
    of subjects may contain it."""

    options: ProtocolOptions
    ids: SchemaIds = field(default_factory=dict)
    topic: str = ""
    _tables: CompiledTables[AvroTableEncoder] = field(default_factory=CompiledTables, repr=False, compare=False)

    @property
    def name(self) -> str:
        return "avro"

    @property
    def ddl_scope(self) -> DdlScope:
        return DdlScope.ALL_PARTITIONS if self._watermark else DdlScope.NONE

    @property
    def _watermark(self) -> bool:
        return self.options.enable_tidb_extension and self.options.avro_enable_watermark

    def with_ids(self, ids: SchemaIds) -> AvroEncoder:
        """Return a copy of the encoder with these ids in place of its own."""
        return AvroEncoder(self.options, ids, self.topic)

    def in_topic(self, topic: str) -> AvroEncoder:
        return replace(self, topic=topic)

    def required_schemas(self, topic: str, table: Table) -> list[RequiredSchema]:
        """Return the schemas that must be registered before rows of this table can be encoded for this topic: the key's
        schema, if the table has a handle key, and the value's. Raises EncodeError if two names of the table are the
        same in Avro."""
        return required_of(table_schemas(table, self.options), self.options, topic)

    def table(self, table: Table) -> AvroTableEncoder:
        """Return the table's encoder. Raises EncodeError as `required_schemas`."""
        return self._tables.get(
            (self.topic, table.key), lambda: AvroTableEncoder(table, self.options, self.ids, self.topic)
        )

    def ddl(self, ddl: Ddl) -> list[Message]:
        """Encode a DDL, only with `avro_enable_watermark`. Confluent's deserialisers cannot read it."""
        if not self._watermark:
            return []
        document = {
            "query": ddl.query,
            "type": ddl.type_code,
            "schema": ddl.schema,
            "table": ddl.table,
            "commitTs": ddl.commit_ts,
        }
        return [Message(None, DDL_LEAD + compact_json(document).encode(), 0, ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        """Encode a resolved timestamp, under the conditions of `ddl`."""
        if not self._watermark:
            return []
        return [Message(None, RESOLVED_LEAD + commit_ts.to_bytes(8, "big"), 0, commit_ts)]


def required_of(schemas: TableSchemas, options: ProtocolOptions, topic: str) -> list[RequiredSchema]:
    names = options.avro_subject_names
    value = RequiredSchema(value_subject(names, topic, schemas.record), schemas.value)
    if schemas.key is None:
        return [value]
    return [RequiredSchema(key_subject(names, topic), schemas.key), value]


class AvroTableEncoder:
    """Encodes rows of one version of a table, a column at a time."""

    def __init__(
        self, table: Table, options: ProtocolOptions, ids: SchemaIds, topic: str, vector_rows_min: int = VECTOR_ROWS_MIN
    ) -> None:
        self._table = table
        self._options = options
        self._vector_rows_min = vector_rows_min
        self._schemas = table_schemas(table, options)
        of = self._schemas.fields, [column.column_type for column in table.columns], options.zone
        self._many: Rows = Many(*of)
        self._few: Rows = Few(*of)
        required = required_of(self._schemas, options, topic)
        found = [ids.get(one.subject, {}).get(one.fingerprint) for one in required]
        self._missing = [one.subject for one, id_ in zip(required, found, strict=True) if id_ is None]
        headers = [b"" if id_ is None else header_of(id_) for id_ in found]
        self._value_header = headers[-1]
        self._key_header = headers[0] if len(headers) > 1 else None

    def encode(self, changes: RowChanges) -> list[EncodedRow]:
        """Encode rows. Raises as `encode_columns`."""
        return rows_of(self.encode_columns(changes))

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """Encode rows as columns. Raises SchemaIdMissing, and EncodeError for a delete in a table without a handle key,
        which would have neither key nor value (with `avro_output_old_row` deletes have a value, too)."""
        if self._missing:
            raise SchemaIdMissing(self._table.schema, self._table.name, self._missing)
        rows = len(changes)
        if not rows:
            return []
        has_value = changes.kind is not Kind.DELETE or self._options.avro_output_old_row
        if not has_value and self._key_header is None:
            first = int(changes.commit_ts[0])
            why = "a delete in a table without a handle key has neither key nor value"
            remedy = "give it a primary key, or see avro-delete-without-key and [[syncer.ignore-table]]"
            raise self._error(first, f"{why}: {remedy}")
        how = self._few if rows < self._vector_rows_min else self._many
        image = self._image(how, changes, changes.image, self._schemas.order if has_value else self._table.handle)
        keys = values = null_column(rows)
        if self._key_header is not None:
            pieces = [piece for column_index in self._table.handle for piece in image[column_index]]
            keys = how.joined([*how.constant(self._key_header, rows), *pieces], rows)
        if has_value:
            values = how.joined(self._value(how, changes, image), rows)
        return [EncodedColumns(keys, values, changes.commit_ts)]

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
        """Raise EncodeError: Avro has no such messages."""
        raise self._error(int(changes.commit_ts[0]), "Avro has no messages with the handle key alone")

    def _image(
        self, how: Rows, changes: RowChanges, columns: Columns, column_indexes: Sequence[int]
    ) -> dict[int, Pieces]:
        """Encode the columns of an image. `column_indexes`: their positions in the table."""
        return {
            column_index: self._column(how, changes, column_index, columns[column_index])
            for column_index in column_indexes
        }

    def _column(self, how: Rows, changes: RowChanges, column_index: int, column: Any) -> Pieces:
        try:
            return how.column(column_index, column)
        except DecodeError as error:
            where = f"Avro: {self._table.column_name(column_index)}"
            convert = partial(self._few.column, column_index)
            raise refused(where, changes.commit_ts, [column], convert, error) from error

    def _value(self, how: Rows, changes: RowChanges, image: Mapping[int, Pieces]) -> Pieces:
        rows, options = len(changes), self._options
        found = how.constant(self._value_header, rows)
        found += [piece for column_index in self._schemas.order for piece in image[column_index]]
        if options.enable_tidb_extension or options.avro_output_old_row:
            found += how.constant(_OPS[changes.kind], rows)
        if options.enable_tidb_extension:
            found += how.longs(changes.commit_ts)
            found += how.longs(changes.commit_ts >> _PHYSICAL_SHIFT)
            if options.enable_row_checksum:
                found += how.constant(_NO_CHECKSUM, rows)
        if options.avro_output_old_row:
            found += self._before(how, changes, image)
        return found

    def _before(self, how: Rows, changes: RowChanges, image: Mapping[int, Pieces]) -> Pieces:
        """Encode the record of the old row, in a union with null."""
        rows = len(changes)
        if changes.old is None:
            return how.constant(b"\0", rows)
        old = image if changes.new is None else self._image(how, changes, changes.old, self._schemas.order)
        return [
            *how.constant(b"\x02", rows),
            *(piece for column_index in self._schemas.order for piece in old[column_index]),
        ]

    def _error(self, commit_ts: int, detail: str) -> EncodeError:
        return EncodeError(f"Avro: `{self._table.schema}`.`{self._table.name}` at commit_ts {commit_ts}: {detail}")


def make_encoder(options: ProtocolOptions, ids: SchemaIds | None = None) -> AvroEncoder:
    """Return the encoder. Raises ProtocolConfigError for options that Avro does not have, or that contradict one
    another."""
    check_choices(options)
    check_checksums(options)
    if options.large_message_handle_option != "none":
        raise ProtocolConfigError(
            f'large-message-handle-option is "{options.large_message_handle_option}": Avro has no such messages'
        )
    assert options.zone
    return AvroEncoder(options, ids or {})
