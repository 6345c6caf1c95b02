"""Debezium JSON: schema changes, watermarks, and one encoder for each table."""

from __future__ import annotations

from dataclasses import dataclass, field

from drainer.protocol.compiled_tables import CompiledTables
from drainer.protocol.compression import compress
from drainer.protocol.debezium import ddl as ddl_documents
from drainer.protocol.debezium.schema import Document, watermark_schemas
from drainer.protocol.debezium.source import source_text
from drainer.protocol.debezium.table_encoder import DebeziumTable
from drainer.protocol.encoder import Ddl, DdlScope, Message, TableEncoder
from drainer.protocol.json_text import json_document, json_string
from drainer.protocol.one_row import OneRowMessages, physical_ms, refuse
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table


@dataclass(frozen=True)
class DebeziumEncoder(OneRowMessages):
    """Encodes Debezium JSON. `namespace` has the role of TiCDC's cluster id: it is the source's name, and the first
    part of schema names."""

    options: ProtocolOptions
    name: str = "debezium"
    ddl_scope: DdlScope = DdlScope.ALL_PARTITIONS
    _tables: CompiledTables[DebeziumTable] = field(default_factory=CompiledTables, repr=False, compare=False)

    def table(self, table: Table) -> TableEncoder:
        return self._tables.get(table.key, lambda: DebeziumTable(table, self.options))

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


def make_encoder(options: ProtocolOptions) -> DebeziumEncoder:
    """Return the encoder. Raises ProtocolConfigError for options that Debezium JSON does not have."""
    refuse(options, ["large-message-handle-option"], "a message that is too large is an error")
    refuse(options, ["only-output-updated-columns", "delete-only-output-handle-key-columns"], "rows are always whole")
    return DebeziumEncoder(options)
