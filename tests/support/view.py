"""A view of one table."""

from __future__ import annotations

from binlog.tidb.table import TableInfo

from drainer.schema.view import SchemaView, TableVersions


def view_of_table(info: TableInfo, schema: str) -> SchemaView:
    """A view of a table that has not changed since schema version 1."""
    return SchemaView({info.id: TableVersions(schema, 1, (1,), (info,))}, {}, 0, 1 << 62, None)
