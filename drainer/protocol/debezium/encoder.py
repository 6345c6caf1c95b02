"""Debezium JSON: schema changes, watermarks, and one encoder for each table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from binlog.cluster.tso import physical_ms

from drainer.batch.work import Kind
from drainer.protocol.debezium import ddl as ddl_documents
from drainer.protocol.debezium.schema import Document, envelope_schema, key_schema, value_of, watermark_schemas
from drainer.protocol.encoder import Ddl, DocumentTable, EncodedColumns, Message, OneRowMessages, compress, compressed
from drainer.protocol.json_text import Parts, Rows, Slot, constant, json_document, json_string
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges, Table

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
_OPERATIONS = {Kind.INSERT: "c", Kind.UPDATE: "u", Kind.DELETE: "d"}
_READ = "r"  # by a first load


def _tail(schema: Document, options: ProtocolOptions) -> str:
    """Return what follows the payload: its schema, unless it is disabled."""
    return "}" if options.debezium_disable_schema else f',"schema":{json_document(schema)}}}'


class DebeziumTable(DocumentTable):
    """A compiled table."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        self._options = options
        self._has_old = options.output_old_value
        self._are_quoted = [value_of(column.column_type, options).is_quoted for column in table.columns]
        super().__init__(table, options, lambda column_type: value_of(column_type, options).fragment)
        # A table without a handle key has an empty key, which all its rows share. Slot 0 is the end of the payload.
        parts = self._members(table.handle, 1)
        self._key = Rows(['{"payload":{', *parts, Slot(0), _tail(key_schema(table, options), options)])

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        return self._encode(changes, self._all, _READ if changes.are_read else "")

    def _keys(self, changes: RowChanges, image: list[Any], mark: str, claims: Sequence[str] | None) -> Any:
        columns = [constant(b"}", len(changes)), *(image[index] for index in self._table.handle)]
        return compressed(self._key.build(columns), self._compression)

    def _member(self, index: int, slot: int) -> Parts:
        return [f"{self._names[index]}:", Slot(slot, quoted=self._are_quoted[index])]

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        options, table, operation = self._options, self._table, mark or _OPERATIONS[kind]
        source = source_parts(
            options.namespace, table.schema, table.name, self.TIME, self.COMMIT, is_snapshot=operation == _READ
        )
        return [
            '{"payload":{"source":',
            *source,
            ',"ts_ms":',
            self.TIME,
            f',"transaction":null,"op":"{operation}"',
            *self._images(kind, column_indexes),
            "}" + _tail(envelope_schema(table, options), options),
        ]

    def _images(self, kind: Kind, column_indexes: tuple[int, ...]) -> Parts:
        image = self._members(column_indexes, self.FIRST_VALUE)
        if kind is Kind.INSERT:
            return [',"before":null,"after":{', *image, "}"]
        if kind is Kind.DELETE:
            return [',"after":null,"before":{', *image, "}"]
        before: Parts = []
        if self._has_old:
            before = [',"before":{', *self._members(column_indexes, self.FIRST_VALUE + len(column_indexes)), "}"]
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
        return Message(self._whole(key, schemas[0]), self._whole(value, schemas[1]), 0, commit_ts)

    def _whole(self, payload: str, schema: Document) -> bytes:
        whole = f'{{"payload":{payload}{_tail(schema, self.options)}'
        return compress(whole.encode(), self.options.large_message_handle_compression)
