"""Canal-JSON: the messages that are not rows, and one encoder for each table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from drainer.protocol.canal.table_encoder import CanalTable
from drainer.protocol.compiled_tables import CompiledTables
from drainer.protocol.compression import compress
from drainer.protocol.ddl_kind import canal_kind
from drainer.protocol.encoder import Ddl, DdlScope, Message, TableEncoder
from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.json_text import json_string
from drainer.protocol.one_row import OneRowMessages, physical_ms
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table

WATERMARK: Final = "TIDB_WATERMARK"


@dataclass(frozen=True)
class CanalEncoder(OneRowMessages):
    """Encodes Canal-JSON. A DDL goes only to the first partition of its topic, so that a reader of several partitions
    applies it once."""

    options: ProtocolOptions
    name: str = "canal-json"
    ddl_scope: DdlScope = DdlScope.FIRST_PARTITION
    _tables: CompiledTables[CanalTable] = field(default_factory=CompiledTables, repr=False, compare=False)

    def table(self, table: Table) -> TableEncoder:
        return self._tables.get(table.key, lambda: CanalTable(table, self.options))

    def ddl(self, ddl: Ddl) -> list[Message]:
        head = self._head(ddl.schema, ddl.table, "true", canal_kind(ddl.type_code), ddl.commit_ts, ddl.query)
        return [self._message(head, f'"commitTs":{ddl.commit_ts}', ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        """Return a watermark. Empty without the extension, which contains the timestamp."""
        if not self.options.enable_tidb_extension:
            return []
        head = self._head("", "", "false", WATERMARK, commit_ts, "")
        return [self._message(head, f'"watermarkTs":{commit_ts}', commit_ts)]

    def _head(self, schema: str, table: str, is_ddl: str, kind: str, commit_ts: int, query: str) -> str:
        at = physical_ms(commit_ts)
        return (
            f'{{"id":0,"database":{json_string(schema)},"table":{json_string(table)},"pkNames":null,"isDdl":{is_ddl},'
            f'"type":"{kind}","es":{at},"ts":{at},"sql":{json_string(query)},"sqlType":null,"mysqlType":null,'
            f'"data":null,"old":null'
        )

    def _message(self, head: str, extension: str, commit_ts: int) -> Message:
        tail = f',"_tidb":{{{extension}}}}}' if self.options.enable_tidb_extension else "}"
        value = compress((head + tail).encode(), self.options.large_message_handle_compression)
        return Message(None, value, 0, commit_ts)


def make_encoder(options: ProtocolOptions) -> CanalEncoder:
    """Return the encoder. Raises ProtocolConfigError if options contradict one another, or if the time zone is not
    known."""
    assert options.zone
    if options.large_message_handle_option != "none" and not options.enable_tidb_extension:
        raise ProtocolConfigError(
            f"large-message-handle-option = {options.large_message_handle_option!r} needs enable-tidb-extension with "
            f"canal-json: the extension says that a message holds handle keys alone"
        )
    return CanalEncoder(options)
