"""Encodes rows of one version of a table as Simple's JSON. Columns are ordered by name, as Go orders the keys of
maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from binlog.tidb.types import Tp

from drainer.batch.work import Kind
from drainer.protocol.binary_columns import base64
from drainer.protocol.encoded_columns import EncodedColumns, compressed, null_column, rows_of
from drainer.protocol.encoder import EncodedRow
from drainer.protocol.errors import EncodeError
from drainer.protocol.json_fragments import Fragment, plain_double, text, utf8_text
from drainer.protocol.json_rows import Rows, Slot, fragments_of, joined, numbers, old_fragments
from drainer.protocol.json_text import json_string
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.simple.schema import schema_version
from drainer.protocol.table import Table
from drainer.row.column_type import ColumnType
from drainer.row.type_class import TypeClass

Parts = list[str | Slot]

# The columns in front of the values in `Rows.build`.
_TIME, _COMMIT, _CLAIM = Slot(0), Slot(1), Slot(2)
_FIRST_VALUE: Final = 3


class SimpleTable:
    """A compiled table: one document for each kind of change, with all columns or with only the handle key's."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        self._table = table
        self._compression = options.large_message_handle_compression
        self._values = [_value_of(column.column_type, options) for column in table.columns]
        self._zone = json_string(options.time_zone)
        self._names = [json_string(column.name) for column in table.columns]
        self._all = tuple(sorted(range(len(table.columns)), key=lambda column_index: table.columns[column_index].name))
        self._documents: dict[tuple[Kind, tuple[int, ...], str], Rows] = {}

    def encode(self, changes: RowChanges) -> list[EncodedRow]:
        return rows_of(self.encode_columns(changes))

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        """See drainer.protocol.encoded_columns.ColumnTableEncoder."""
        return self._encode(changes, self._all, "", None)

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedRow]:
        if not self._table.handle:
            commit = int(changes.commit_ts[0]) if len(changes) else 0
            raise EncodeError(
                f"`{self._table.schema}`.`{self._table.name}` has no handle key, so the {changes.kind.name.lower()} at "
                f"commit_ts {commit} cannot be sent with handle key columns alone"
            )
        column_indexes = tuple(column_index for column_index in self._all if column_index in self._table.handle)
        return rows_of(self._encode(changes, column_indexes, "handle" if claims is None else "claim", claims))

    def _encode(
        self, changes: RowChanges, column_indexes: tuple[int, ...], mark: str, claims: Sequence[str] | None
    ) -> list[EncodedColumns]:
        if not len(changes):
            return []
        columns = [
            numbers(changes.commit_ts >> np.uint64(18)),
            numbers(changes.commit_ts),
            pa.array([json_string(claim).encode() for claim in claims or ()], pa.binary()),
        ]
        image = fragments_of(changes, changes.image, self._values, column_indexes)
        columns += image
        if changes.kind is Kind.UPDATE:
            columns += old_fragments(changes, self._values, column_indexes, image)
        document = self._documents.get((changes.kind, column_indexes, mark))
        if document is None:
            document = self._documents[changes.kind, column_indexes, mark] = Rows(
                self._parts(changes.kind, column_indexes, mark)
            )
        messages = compressed(document.build(columns), self._compression)
        return [EncodedColumns(null_column(len(changes)), messages, changes.commit_ts)]

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        table = self._table
        claim: Parts = [',"claimCheckLocation":', _CLAIM] if mark == "claim" else []
        new = self._image("data", column_indexes, _FIRST_VALUE) if kind is not Kind.DELETE else []
        behind_new = _FIRST_VALUE + (len(column_indexes) if new else 0)
        old = self._image("old", column_indexes, behind_new) if kind is not Kind.INSERT else []
        return [
            f'{{"version":1,"database":{json_string(table.schema)},"table":{json_string(table.name)},'
            f'"tableID":{table.id},"type":"{kind.name}","commitTs":',
            _COMMIT,
            ',"buildTs":',
            _TIME,
            f',"schemaVersion":{schema_version(table)}',
            *claim,
            ',"handleKeyOnly":true' if mark else "",
            *new,
            *old,
            "}",
        ]

    def _image(self, name: str, column_indexes: tuple[int, ...], first: int) -> Parts:
        members: list[Parts] = [
            [
                f"{self._names[column_index]}:",
                Slot(first + n, True, *self._around(self._table.columns[column_index].column_type)),
            ]
            for n, column_index in enumerate(column_indexes)
        ]
        return [f',"{name}":{{', *joined(members), "}"]

    def _around(self, column_type: ColumnType) -> tuple[str, str]:
        """Return the text around a value. A TIMESTAMP has its time zone next to it."""
        return (f'{{"location":{self._zone},"value":', "}") if column_type.kind.tp is Tp.TIMESTAMP else ("", "")


def _value_of(column_type: ColumnType, options: ProtocolOptions) -> Fragment:
    if column_type.type_class is TypeClass.FLOAT:
        return plain_double(column_type)
    if column_type.type_class is TypeClass.TEXT:
        return utf8_text
    return base64 if column_type.type_class is TypeClass.BYTES else text(column_type, options.zone)
