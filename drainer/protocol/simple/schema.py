"""The schema of a table in Simple's messages."""

from __future__ import annotations

from typing import Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.table import IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, Flag, Tp

from drainer.protocol.table import Table

Document = dict[str, object]

# TiCDC's name for a primary key that is the handle and so has no index.
_HANDLE: Final = "primary"


def schema_version(table: Table) -> int:
    """Return the version by which rows refer to the schema: the timestamp of the table's last change, or its schema
    version if TiDB gave no timestamp."""
    return table.info.update_timestamp or table.version


def table_schema(table: Table) -> Document:
    info = table.info
    indexes = [_index(info, index) for index in info.indexes if index.is_public]
    primary = info.primary_index()
    if info.pk_is_handle and primary is not None:
        indexes.append(_index(info, primary) | {"name": _HANDLE})
    return {
        "schema": table.schema,
        "table": table.name,
        "tableID": table.id,
        "version": schema_version(table),
        "columns": [_column(column) for column in sorted(info.public_columns, key=lambda column: column.id)],
        "indexes": indexes,
    }


def _column(column: ColumnInfo) -> Document:
    kind = column.type
    described: Document = {
        "mysqlType": kind.mysql_name,
        "charset": kind.charset,
        "collate": kind.collate,
        "length": kind.flen,
        "decimal": 0 if kind.tp in FLOATS else kind.decimal,
        "elements": list(kind.elems),
        "unsigned": kind.is_unsigned,
        "zerofill": bool(kind.flag & Flag.ZEROFILL),
    }
    absent = ("length", "decimal", "elements", "unsigned", "zerofill")
    return {
        "name": column.name,
        "dataType": {name: value for name, value in described.items() if name not in absent or value},
        "nullable": not kind.is_not_null,
        "default": int.from_bytes(column.default_bit, "big")
        if kind.tp is Tp.BIT and column.default_bit is not None
        else column.default,
    }


def _index(info: TableInfo, index: IndexInfo) -> Document:
    return {
        "name": index.name,
        "unique": index.unique,
        "primary": index.primary,
        "nullable": not all(column.is_not_null for column in info.index_columns(index)),
        "columns": [part.name for part in index.columns],
    }
