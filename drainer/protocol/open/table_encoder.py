"""Encodes rows of one version of a table as events of Open Protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from drainer.batch.work import Kind
from drainer.protocol.encoded_columns import EncodedColumns, compressed, large_binary, rows_of
from drainer.protocol.encoder import EncodedRow
from drainer.protocol.errors import EncodeError
from drainer.protocol.json_text import json_string
from drainer.protocol.open.columns import BadColumn, ColumnCode, changed_parts, compiled, constant, image_parts, joined
from drainer.protocol.open.row_place import member, partition_ids, row_ids
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Table

# The most bytes of carriers that are encoded at a time. A byte may become six bytes of JSON, several copies of which
# are in memory.
PIECE_BYTES: Final = 16 << 20
_WHOLE: Final = b',"t":1}'
_HANDLE_ONLY: Final = b',"t":1,"ohk":true}'


class OpenTableEncoder:
    """See drainer.protocol.encoder.TableEncoder."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        self._table = table
        self._options = options
        self._all = compiled(table, options.zone)
        self._handle = tuple(code for code in self._all if table.columns[code.place].in_handle)
        name = f',"tbl":{json_string(table.name)}' if table.name else ""
        schema = f',"scm":{json_string(table.schema)}' if table.schema else ""
        self._names = (schema + name).encode()
        self._row_ids = row_ids(table)
        self._partition_ids = partition_ids(table)

    def encode(self, changes: RowChanges) -> list[EncodedRow]:
        return rows_of(self.encode_columns(changes))

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """See drainer.protocol.encoded_columns.ColumnTableEncoder."""
        delete_handle = changes.kind is Kind.DELETE and self._options.delete_only_output_handle_key_columns
        codes = self._handle_codes(changes) if delete_handle else self._all
        return [self._columns(piece, codes, constant(_WHOLE)) for piece in _pieces(changes) if len(piece)]

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
        codes = self._handle_codes(changes)
        if claims is None:
            return self._columns(changes, codes, constant(_HANDLE_ONLY)).rows() if len(changes) else []
        ends = [f',"t":1,"ccl":{json_string(claim)}}}'.encode() for claim in claims]
        return self._columns(changes, codes, pa.array(ends, pa.binary())).rows() if len(changes) else []

    def _handle_codes(self, changes: RowChanges) -> tuple[ColumnCode, ...]:
        if not self._handle:
            table, kind = self._table, changes.kind.name.lower()
            raise EncodeError(
                f"open-protocol: not found handle key columns for the {kind} event: `{table.schema}`.`{table.name}`, "
                f"commit_ts {int(changes.commit_ts[0]) if len(changes) else 0}"
            )
        return self._handle

    def _columns(self, changes: RowChanges, codes: Sequence[ColumnCode], key_end: Any) -> EncodedColumns:
        try:
            values = large_binary(joined(self._value_parts(changes, codes)))
        except BadColumn as bad:
            raise bad.of(changes) from None
        values = compressed(values, self._options.large_message_handle_compression)
        return EncodedColumns(large_binary(joined(self._key_parts(changes, key_end))), values, changes.commit_ts)

    def _value_parts(self, changes: RowChanges, codes: Sequence[ColumnCode]) -> list[Any]:
        old, new = changes.old, changes.new
        if new is None:
            assert old is not None
            return image_parts(codes, old, b'{"d":{', b"}}")
        if old is None or not self._options.output_old_value:
            return image_parts(codes, new, b'{"u":{', b"}}")
        if not self._options.only_output_updated_columns:
            return [*image_parts(codes, new, b'{"u":{', b"}"), *image_parts(codes, old, b',"p":{', b"}}")]
        return [*image_parts(codes, new, b'{"u":{', b"}"), *changed_parts(codes, old, new), constant(b"}")]

    def _key_parts(self, changes: RowChanges, end: Any) -> list[Any]:
        stamps = pa.array(changes.commit_ts).cast(pa.string()).cast(pa.binary())
        parts = [constant(b'{"ts":'), stamps, constant(self._names)]
        if self._row_ids is not None:
            parts.append(member(b"rid", self._row_ids(changes.image), omitted=0))
        if self._partition_ids is not None:
            parts.append(member(b"ptn", self._partition_ids(changes.image), omitted=None))
        return [*parts, end]


def _pieces(changes: RowChanges) -> Iterator[RowChanges]:
    """Split the changes into parts that are encoded at a time."""
    rows = len(changes)
    images = [image for image in (changes.old, changes.new) if image is not None]
    size = sum(column.nbytes for image in images for column in image) + rows * 32 * sum(map(len, images))
    if rows < 2 or size <= PIECE_BYTES:
        yield changes
        return
    half = rows // 2
    yield from _pieces(changes.slice(0, half))
    yield from _pieces(changes.slice(half, rows - half))
