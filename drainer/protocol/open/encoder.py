"""Encodes rows, DDLs and resolved timestamps in Open Protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from drainer.changes.vector import Ints
from drainer.protocol.compiled_tables import CompiledTables
from drainer.protocol.compression import compress
from drainer.protocol.encoded_columns import EncodedColumns, take_rows
from drainer.protocol.encoder import Ddl, DdlScope, EncodedRow, Message
from drainer.protocol.errors import EncodeError
from drainer.protocol.json_text import json_string
from drainer.protocol.open.framing import frame, frame_columns, single
from drainer.protocol.open.table_encoder import OpenTableEncoder
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table

ROW, DDL, RESOLVED, ADMIN = 1, 2, 3, 4


class OpenEncoder:
    """See drainer.protocol.encoder.Encoder."""

    name: Final = "open-protocol"
    ddl_scope: Final = DdlScope.ALL_PARTITIONS
    joins_transactions: Final = False

    def __init__(self, options: ProtocolOptions) -> None:
        self._options = options
        self._tables = CompiledTables[OpenTableEncoder]()

    def table(self, table: Table) -> OpenTableEncoder:
        return self._tables.get(table.key, lambda: OpenTableEncoder(table, self._options))

    def frame(self, rows: Iterable[EncodedRow]) -> Iterator[Message]:
        return frame(rows, self._options.max_message_bytes, self._options.max_batch_size)

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> Iterator[Message]:
        return frame_columns(take_rows(parts, chosen), self._options.max_message_bytes, self._options.max_batch_size)

    def ddl(self, ddl: Ddl) -> list[Message]:
        """Encode a DDL. Raises EncodeError if its query is not valid Unicode."""
        names = "".join(
            f',"{member}":{json_string(name)}' for member, name in (("scm", ddl.schema), ("tbl", ddl.table)) if name
        )
        try:
            key = f'{{"ts":{ddl.commit_ts}{names},"t":{DDL}}}'.encode()
            value = f'{{"q":{json_string(ddl.query)},"t":{ddl.type_code}}}'.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(
                f"open-protocol: the DDL of `{ddl.schema}`.`{ddl.table}` at commit_ts {ddl.commit_ts} is not UTF-8 at "
                f"character {error.start}"
            ) from None
        return [single(key, compress(value, self._options.large_message_handle_compression), ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        return [single(f'{{"ts":{commit_ts},"t":{RESOLVED}}}'.encode(), b"", commit_ts)]

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        return []

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        """Return an Admin event, an extension of this project: no protocol of TiCDC has it."""
        key, value = f'{{"ts":{commit_ts},"t":{ADMIN}}}', f'{{"partition":{partitions}}}'
        return [single(key.encode(), value.encode(), commit_ts)]


def make_encoder(options: ProtocolOptions) -> OpenEncoder:
    """Return the encoder. Raises ProtocolConfigError if the time zone is not known."""
    assert options.zone
    return OpenEncoder(options)
