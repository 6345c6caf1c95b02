"""Tables of marks, rows in them, and a schema with one."""

from __future__ import annotations

from dataclasses import replace

from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp

from drainer.schema.view import MarkTables, SchemaView, SkipReason, TableVersions
from tests.support.row_case import INT, TEXT, Step, not_null, table, view_of

_BIG = FieldType(Tp.LONGLONG, flen=20, decimal=0)


def _mark_table(*, clustered: bool) -> TableInfo:
    columns = [("id", not_null(_BIG)), ("channel_id", not_null(_BIG)), ("val", _BIG), ("channel_info", TEXT)]
    key = {"PRIMARY": ["id", "channel_id"]}
    return table(columns, unique=key, clustered=clustered, table_id=300, name="_drainer_repl_mark")


MARKS = _mark_table(clustered=True), _mark_table(clustered=False)
APP = table([("id", INT), ("v", INT)], handle="id", table_id=100, name="app")


def put(key: int, value: int = 0) -> Step:
    return ("insert", {}, {1: key, 2: value})


def mark(info: TableInfo, channel: int, kind: str = "update", *, number: int = 0) -> tuple[TableInfo, Step]:
    old: dict[int, Datum] = {1: number, 2: channel, 3: 4, 4: b""}
    new: dict[int, Datum] = {**old, 3: 5}
    return info, (kind, old if kind != "insert" else {}, new if kind != "delete" else {})


def marked_view(info: TableInfo, channel: int, *tables: TableInfo) -> SchemaView:
    """As drainer.schema.state makes it with loopback-control."""
    marks = MarkTables(channel, {info.id: TableVersions("retl", 3, (1,), (info,))})
    return replace(view_of(APP, *tables), marks=marks, gone={info.id: SkipReason.FILTERED})
