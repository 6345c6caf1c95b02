"""Debezium JSON: schema changes, watermarks, and one encoder for each table."""

from __future__ import annotations

from typing import Any

import numpy as np
from binlog.cluster.tso import physical_ms

from drainer.batch.work import Kind
from drainer.protocol.compression import compress
from drainer.protocol.debezium import ddl as ddl_documents
from drainer.protocol.debezium.schema import Document, envelope_schema, key_schema, watermark_schemas
from drainer.protocol.debezium.values import value_of
from drainer.protocol.encoded_columns import EncodedColumns, compressed
from drainer.protocol.encoder import Ddl, Message
from drainer.protocol.json_rows import Rows, Slot, constant, fragments_of, joined, numbers, old_fragments
from drainer.protocol.json_text import json_document, json_string
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.row_messages import OneRowMessages, TableEncoder
from drainer.protocol.table import Table

# The source block of Debezium's messages: the text in front of and after its two numbers.

# TiCDC states the version of Debezium whose messages it imitates.
_VERSION = "2.4.0.Final"


def source_parts(
    namespace: str, schema: str, table: str, time: Slot | str, commit_ts: Slot | str, *, is_snapshot: bool = False
) -> list[str | Slot]:
    """Return the parts of the source block. `time`: milliseconds since 1970."""
    name = json_string(namespace)
    return [
        f'{{"version":"{_VERSION}","connector":"TiCDC","name":{name},"ts_ms":',
        time,
        f',"snapshot":"{str(is_snapshot).lower()}","db":{json_string(schema)},"table":{json_string(table)},"server_id":0,"gtid":null,'
        f'"file":"","pos":0,"row":0,"thread":0,"query":null,"commit_ts":',
        commit_ts,
        f',"cluster_id":{name}}}',
    ]


def source_text(namespace: str, schema: str, table: str, commit_ts: int) -> str:
    parts = source_parts(namespace, schema, table, str(physical_ms(commit_ts)), str(commit_ts))
    return "".join(part for part in parts if isinstance(part, str))


# Encodes rows of one version of a table as Debezium JSON. Both schemas are constants of the compiled documents.
Parts = list[str | Slot]

_OPERATIONS = {Kind.INSERT: "c", Kind.UPDATE: "u", Kind.DELETE: "d"}
_READ = "r"  # by a first load
_KINDS = {**{operation: kind for kind, operation in _OPERATIONS.items()}, _READ: Kind.INSERT}
_TIME, _COMMIT = Slot(0), Slot(1)


class DebeziumTable(TableEncoder):
    """A compiled table. Columns of `Rows.build`: the time, the commit_ts, the new image (for deletes the old one), and
    for updates the old image."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options)
        self._options = options
        self._values = [value_of(column.column_type, options) for column in table.columns]
        self._fragments = [value.fragment for value in self._values]
        self._names = [json_string(column.name) for column in table.columns]
        self._documents = {operation: Rows(self._parts(kind, operation)) for operation, kind in _KINDS.items()}
        self._key = Rows(self._key_parts())

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        if not len(changes):
            return []
        column_indexes = range(len(self._table.columns))
        image = fragments_of(changes, changes.image, self._fragments, column_indexes)
        columns = [numbers(changes.commit_ts >> np.uint64(18)), numbers(changes.commit_ts), *image]
        if changes.kind is Kind.UPDATE and self._options.output_old_value:
            columns += old_fragments(changes, self._fragments, column_indexes, image)
        operation = _READ if changes.are_read else _OPERATIONS[changes.kind]
        values = compressed(self._documents[operation].build(columns), self._compression)
        return [EncodedColumns(self._keys(image, len(changes)), values, changes.commit_ts)]

    def _keys(self, image: list[Any], count: int) -> Any:
        columns = [constant(b"}", count), *(image[index] for index in self._table.handle)]
        return compressed(self._key.build(columns), self._compression)

    def _key_parts(self) -> Parts:
        """Return the parts of the key. A table without a handle key has an empty key, which all its rows share."""
        values = enumerate(self._table.handle, 1)
        members = [self._member(index, at) for at, index in values]
        tail = ""
        if not self._options.debezium_disable_schema:
            schema = key_schema(self._table, self._options)
            tail = f',"schema":{json_document(schema)}'
        return ['{"payload":{', *joined(members), Slot(0), tail + "}"]

    def _member(self, index: int, at: int) -> Parts:
        return [f"{self._names[index]}:", Slot(at, quoted=self._values[index].is_quoted)]

    def _parts(self, kind: Kind, operation: str) -> Parts:
        options, table = self._options, self._table
        tail = "}"
        if not options.debezium_disable_schema:
            schema = envelope_schema(table, options)
            tail = f',"schema":{json_document(schema)}}}'
        return [
            '{"payload":{"source":',
            *source_parts(options.namespace, table.schema, table.name, _TIME, _COMMIT, is_snapshot=operation == _READ),
            ',"ts_ms":',
            _TIME,
            f',"transaction":null,"op":"{operation}"',
            *self._images(kind),
            "}" + tail,
        ]

    def _images(self, kind: Kind) -> Parts:
        count = len(self._names)
        image = joined([self._member(index, index + 2) for index in range(count)])
        if kind is Kind.INSERT:
            return [',"before":null,"after":{', *image, "}"]
        if kind is Kind.DELETE:
            return [',"after":null,"before":{', *image, "}"]
        before: Parts = []
        if self._options.output_old_value:
            before = [',"before":{', *joined([self._member(index, index + 2 + count) for index in range(count)]), "}"]
        return [*before, ',"after":{', *image, "}"]


class DebeziumEncoder(OneRowMessages):
    """Encodes Debezium JSON. `namespace` has the role of TiCDC's cluster id: it is the source's name, and the first
    part of schema names."""

    name = "debezium"
    table_class = DebeziumTable

    def ddl(self, ddl: Ddl) -> list[Message]:
        named = ddl.after or ddl.before
        schema, table = (ddl.schema, ddl.table) if named is None else (named.schema, named.name)
        key = f'{{"databaseName":{json_string(schema)}}}'
        payload = (
            f'{{"source":{source_text(self.options.namespace, schema, table, ddl.commit_ts)},'
            f'"ts_ms":{physical_ms(ddl.commit_ts)},"databaseName":{json_string(schema)},"schemaName":null,'
            f'"ddl":{json_string(ddl.query)},"tableChanges":{json_document(ddl_documents.changes_of(ddl))}}}'
        )
        schemas = ddl_documents.key_schema(), ddl_documents.value_schema()
        return [self._message(key, payload, schemas, ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        """Return a watermark. Empty without the extension."""
        if not self.options.enable_tidb_extension:
            return []
        payload = (
            f'{{"source":{source_text(self.options.namespace, "", "", commit_ts)},'
            f'"ts_ms":{physical_ms(commit_ts)},"transaction":null,"op":"m"}}'
        )
        return [self._message("{}", payload, watermark_schemas(self.options.namespace), commit_ts)]

    def _message(self, key: str, value: str, schemas: tuple[Document, Document], commit_ts: int) -> Message:
        whole = [self._whole(payload, schema) for payload, schema in zip((key, value), schemas, strict=True)]
        return Message(whole[0], whole[1], 0, commit_ts)

    def _whole(self, payload: str, schema: Document) -> bytes:
        tail = "}" if self.options.debezium_disable_schema else f',"schema":{json_document(schema)}}}'
        return compress(f'{{"payload":{payload}{tail}'.encode(), self.options.large_message_handle_compression)
