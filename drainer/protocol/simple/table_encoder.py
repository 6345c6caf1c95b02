"""The schema of a table in Simple's messages, and rows of one version of a table as Simple's JSON. Columns are ordered
by name, as Go orders the keys of maps.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.table import IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.encoded_columns import EncodedColumns
from drainer.protocol.json_rows import Parts, Slot
from drainer.protocol.json_text import base64, json_string
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.row_messages import DocumentTable, value_of
from drainer.protocol.table import Table

# The schema of a table in Simple's messages.

Document = dict[str, object]

# TiCDC's name for a primary key that is the handle and so has no index.
_HANDLE: Final = "primary"
_NUMBERS: Final = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "bit", "year", "decimal"}
)
# Members of a type in Avro that only these types have.
_ONLY_OF: Final = {"decimal": ("decimal",), "elements": ("enum", "set"), "unsigned": _NUMBERS, "zerofill": _NUMBERS}


def schema_version(table: Table) -> int:
    """Return the version by which rows refer to the schema: the timestamp of the table's last change, or its schema
    version if TiDB gave no timestamp."""
    return table.info.update_timestamp or table.version


def table_schema(table: Table, *, of_avro: bool) -> Document:
    info = table.info
    indexes = [_index(info, index) for index in info.indexes if index.is_public]
    primary = info.primary_index()
    if info.pk_is_handle and primary is not None:
        indexes.append(_index(info, primary) | {"name": _HANDLE})
    return {
        "database" if of_avro else "schema": table.schema,
        "table": table.name,
        "tableID": table.id,
        "version": schema_version(table),
        "columns": [_column(column, of_avro=of_avro) for column in sorted(info.public_columns, key=lambda one: one.id)],
        "indexes": indexes,
    }


def _column(column: ColumnInfo, *, of_avro: bool) -> Document:
    """Describe a column. JSON leaves out what is 0, false or empty of a type, Avro what its kind of type does not
    have."""
    kind, name, default = column.type, column.type.mysql_name, column.default
    described: Document = {
        "mysqlType": name,
        "charset": kind.charset,
        "collate": kind.collate,
        "length": kind.flen,
        "decimal": 0 if kind.tp in FLOATS else kind.decimal,
        "elements": list(kind.elems),
        "unsigned": kind.is_unsigned,
        "zerofill": bool(kind.flag & Flag.ZEROFILL),
    }
    if of_avro:
        data_type = {member: value for member, value in described.items() if name in _ONLY_OF.get(member, (name,))}
    else:
        always = ("mysqlType", "charset", "collate")
        data_type = {member: value for member, value in described.items() if member in always or value}
    if kind.tp is Tp.BIT and column.default_bit is not None:
        default = int.from_bytes(column.default_bit, "big")
    return {
        "name": column.name,
        "dataType": data_type,
        "nullable": not kind.is_not_null,
        "default": str(default) if of_avro and default is not None else default,
    }


def _index(info: TableInfo, index: IndexInfo) -> Document:
    return {
        "name": index.name,
        "unique": index.unique,
        "primary": index.primary,
        "nullable": not all(column.is_not_null for column in info.index_columns(index)),
        "columns": [part.name for part in index.columns],
    }


class SimpleTable(DocumentTable):
    BY_NAME = True

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options, partial(value_of, zone=options.zone, binary=base64))
        self._zone = json_string(options.time_zone)

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        return self._encode(changes, self._all)

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        table = self._table
        claim: Parts = [',"claimCheckLocation":', self.CLAIM] if mark == "claim" else []
        new = self._image("data", column_indexes, self.FIRST_VALUE) if kind is not Kind.DELETE else []
        behind_new = self.FIRST_VALUE + (len(column_indexes) if new else 0)
        old = self._image("old", column_indexes, behind_new) if kind is not Kind.INSERT else []
        return [
            f'{{"version":1,"database":{json_string(table.schema)},"table":{json_string(table.name)},'
            f'"tableID":{table.id},"type":"{kind.name}","commitTs":',
            self.COMMIT,
            ',"buildTs":',
            self.TIME,
            f',"schemaVersion":{schema_version(table)}',
            *claim,
            ',"handleKeyOnly":true' if mark else "",
            *new,
            *old,
            "}",
        ]

    def _image(self, name: str, column_indexes: tuple[int, ...], first: int) -> Parts:
        return [f',"{name}":{{', *self._members(column_indexes, first), "}"]

    def _member(self, index: int, slot: int) -> Parts:
        """A TIMESTAMP has its time zone next to it."""
        if self._table.columns[index].column_type.kind.tp is not Tp.TIMESTAMP:
            return super()._member(index, slot)
        return [f"{self._names[index]}:", Slot(slot, True, f'{{"location":{self._zone},"value":', "}")]
