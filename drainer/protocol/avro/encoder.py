"""Encodes TiCDC's Avro. It has no batches, no old rows (except with `avro_output_old_row`), no handle-only messages,
and no checksums of rows: TiDB stores these in the rows of its storage, and binlogs do not contain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.protocol.avro.blocks import Piece, constant, joined, pieces_of, varints
from drainer.protocol.avro.schema import TableSchemas, compact_json, subjects, table_schemas
from drainer.protocol.encoder import (
    Ddl,
    DdlScope,
    EncodedColumns,
    Message,
    OneRowMessages,
    RequiredSchema,
    SchemaIds,
    TableEncoder,
    header_of,
    null_column,
)
from drainer.protocol.errors import EncodeError, SchemaIdMissing
from drainer.protocol.json_text import fragments_of
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges, Table

_OPS: Final = {Kind.INSERT: b"\x02c", Kind.UPDATE: b"\x02u", Kind.DELETE: b"\x02d"}
_PHYSICAL_SHIFT: Final = np.uint64(18)
DDL_LEAD: Final = b"\x01"
RESOLVED_LEAD: Final = b"\x02"


class AvroEncoder(OneRowMessages):
    """Encodes Avro. `ids`: the ids of the registered schemas."""

    name = "avro"
    registers = True

    def __init__(self, options: ProtocolOptions, ids: SchemaIds | None = None) -> None:
        super().__init__(options)
        self.ids: SchemaIds = ids or {}
        self._watermark = options.enable_tidb_extension and options.avro_enable_watermark
        self.ddl_scope = DdlScope.ALL_PARTITIONS if self._watermark else DdlScope.NONE

    def with_ids(self, ids: SchemaIds) -> AvroEncoder:
        return AvroEncoder(self.options, ids)

    def required_schemas(self, topic: str, table: Table) -> list[RequiredSchema]:
        """Return the key's schema, if the table has a handle key, and the value's. Raises EncodeError if two names of
        the table are the same in Avro."""
        return required_of(table_schemas(table, self.options), self.options, topic)

    def table(self, table: Table, topic: str = "") -> TableEncoder:
        """Names of subjects may contain the topic. Raises EncodeError as `required_schemas`."""
        return self._tables.get((topic, table.key), lambda: AvroTableEncoder(table, self.options, self.ids, topic))

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
    pairs = zip(subjects(options, topic), (schemas.key, schemas.value), strict=True)
    return [RequiredSchema(subject, schema) for subject, schema in pairs if schema is not None]


class AvroTableEncoder(TableEncoder):
    """Encodes rows of one version of a table, a column at a time."""

    def __init__(self, table: Table, options: ProtocolOptions, ids: SchemaIds, topic: str) -> None:
        super().__init__(table, options)
        self._options = options
        schemas = table_schemas(table, options)
        self._pieces = [
            partial(pieces_of, field, column.column_type, zone=options.zone)
            for field, column in zip(schemas.fields, table.columns, strict=True)
        ]
        required = required_of(schemas, options, topic)
        found = [ids.get(one.subject, {}).get(one.fingerprint) for one in required]
        self._missing = [one.subject for one, id_ in zip(required, found, strict=True) if id_ is None]
        headers = [b"" if id_ is None else header_of(id_) for id_ in found]
        self._value_header = headers[-1]
        self._key_header = headers[0] if len(headers) > 1 else None

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """Encode rows as columns. Raises SchemaIdMissing, and EncodeError for a delete in a table without a handle key,
        which would have neither key nor value (with `avro_output_old_row` deletes have a value, too)."""
        table = f"`{self._table.schema}`.`{self._table.name}`"
        if self._missing:
            raise SchemaIdMissing(f"{table}: no schema id is known for {' and '.join(self._missing)}")
        rows = len(changes)
        if not rows:
            return []
        has_value = changes.kind is not Kind.DELETE or self._options.avro_output_old_row
        if not has_value and self._key_header is None:
            first = int(changes.commit_ts[0])
            why = "a delete in a table without a handle key has neither key nor value"
            remedy = "give it a primary key, or leave it out with [[syncer.ignore-table]]"
            raise EncodeError(f"Avro: {table} at commit_ts {first}: {why}: {remedy}")
        image = self._image(changes, changes.image, self._all if has_value else self._table.handle)
        keys = values = null_column(rows)
        if self._key_header is not None:
            pieces = [piece for column_index in self._table.handle for piece in image[column_index]]
            keys = joined([constant(self._key_header, rows), *pieces], rows)
        if has_value:
            values = joined(self._value(changes, image), rows)
        return [EncodedColumns(keys, values, changes.commit_ts)]

    def _image(self, changes: RowChanges, columns: Columns, column_indexes: Sequence[int]) -> dict[int, list[Piece]]:
        """Encode the columns of an image. `column_indexes`: their positions in the table."""
        pieces = fragments_of(changes, columns, self._pieces, column_indexes)
        return dict(zip(column_indexes, pieces, strict=True))

    def _value(self, changes: RowChanges, image: Mapping[int, list[Piece]]) -> list[Piece]:
        rows, options = len(changes), self._options
        found = [constant(self._value_header, rows)]
        found += [piece for column_index in self._all for piece in image[column_index]]
        if options.enable_tidb_extension or options.avro_output_old_row:
            found.append(constant(_OPS[changes.kind], rows))
        if options.enable_tidb_extension:
            found.append(varints(changes.commit_ts.view(np.int64)))
            found.append(varints((changes.commit_ts >> _PHYSICAL_SHIFT).view(np.int64)))
        if options.avro_output_old_row:
            found += self._before(changes, image)
        return found

    def _before(self, changes: RowChanges, image: Mapping[int, list[Piece]]) -> list[Piece]:
        """Encode the record of the old row, in a union with null."""
        rows = len(changes)
        if changes.old is None:
            return [constant(b"\0", rows)]
        old = image if changes.new is None else self._image(changes, changes.old, self._all)
        return [constant(b"\x02", rows), *(piece for column_index in self._all for piece in old[column_index])]
