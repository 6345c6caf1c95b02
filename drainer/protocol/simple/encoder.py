"""Simple, in JSON and in Avro: watermarks, schemas, and one encoder for each table."""

from __future__ import annotations

from dataclasses import dataclass, field

from binlog.tidb.job import ActionType

from drainer.protocol.compiled_tables import CompiledTables
from drainer.protocol.compression import compress
from drainer.protocol.ddl_kind import canal_kind
from drainer.protocol.encoder import Ddl, DdlScope, Message, TableEncoder
from drainer.protocol.json_text import json_document
from drainer.protocol.one_row import OneRowMessages, physical_ms, refuse
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.simple.avro_documents import write_document
from drainer.protocol.simple.avro_rows import SimpleAvroTable
from drainer.protocol.simple.schema import table_schema
from drainer.protocol.simple.table_encoder import SimpleTable
from drainer.protocol.table import Table


@dataclass(frozen=True)
class SimpleEncoder(OneRowMessages):
    """Encodes Simple. Readers need a table's schema to use its rows. They get it from DDLs and from bootstrap messages,
    which are sent when bootstrap.BootstrapSchedule says so."""

    options: ProtocolOptions
    name: str = "simple"
    ddl_scope: DdlScope = DdlScope.ALL_PARTITIONS
    _tables: CompiledTables[TableEncoder] = field(default_factory=CompiledTables, repr=False, compare=False)

    def table(self, table: Table) -> TableEncoder:
        made = SimpleTable if self.options.encoding_format == "json" else SimpleAvroTable
        return self._tables.get(table.key, lambda: made(table, self.options))

    def ddl(self, ddl: Ddl) -> list[Message]:
        """Encode a DDL. A dropped table is described as it was before. A DDL of a database has the database's name
        instead."""
        table = ddl.after
        if table is None and ddl.type_code == ActionType.DROP_TABLE:
            table = ddl.before
        document: dict[str, object] = {"version": 1}
        if table is None:
            document |= {"database": ddl.schema} | ({"table": ddl.table} if ddl.table else {})
        document |= {
            "type": canal_kind(ddl.type_code),
            "sql": ddl.query,
            "commitTs": ddl.commit_ts,
            "buildTs": physical_ms(ddl.commit_ts),
        }
        if table is not None:
            document["tableSchema"] = table_schema(table)
        if ddl.before is not None:
            document["preTableSchema"] = table_schema(ddl.before)
        return [self._message(document, ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        at = physical_ms(commit_ts)
        document = {"version": 1, "type": "WATERMARK", "commitTs": commit_ts, "buildTs": at}
        return [self._message(document, commit_ts)]

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        """Encode a table's schema. Its commitTs is 0, as in TiCDC."""
        document = {
            "version": 1,
            "type": "BOOTSTRAP",
            "commitTs": 0,
            "buildTs": physical_ms(commit_ts),
            "tableSchema": table_schema(table),
        }
        return [self._message(document, commit_ts)]

    def _message(self, document: dict[str, object], commit_ts: int) -> Message:
        written = (
            json_document(document).encode() if self.options.encoding_format == "json" else write_document(document)
        )
        value = compress(written, self.options.large_message_handle_compression)
        return Message(None, value, 0, commit_ts)


def make_encoder(options: ProtocolOptions) -> SimpleEncoder:
    """Return the encoder. Raises ProtocolConfigError for options that Simple does not have here."""
    refuse(options, ["enable-row-checksum"], "rows have no checksum")
    refuse(options, ["only-output-updated-columns", "delete-only-output-handle-key-columns"], "rows are always whole")
    assert options.zone
    return SimpleEncoder(options)
