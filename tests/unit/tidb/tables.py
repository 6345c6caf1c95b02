"""Small tables for tests of rows, defaults and schema JSON."""

from __future__ import annotations

from typing import Any

from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp

KEY = int(Flag.PRI_KEY | Flag.NOT_NULL)
BIGINT = FieldType(Tp.LONGLONG, 0, 20, 0)
BIGINT_KEY = FieldType(Tp.LONGLONG, KEY, 20, 0)
UNSIGNED_KEY = FieldType(Tp.LONGLONG, KEY | Flag.UNSIGNED, 20, 0)
VARCHAR = FieldType(Tp.VARCHAR, 0, 24, 0, "utf8mb4", "utf8mb4_bin")
VARCHAR_CI = FieldType(Tp.VARCHAR, 0, 24, 0, "utf8mb4", "utf8mb4_general_ci")
VARBINARY = FieldType(Tp.VARCHAR, 0, 24, 0)
DATETIME = FieldType(Tp.DATETIME, 0, 19, 0)
TIME = FieldType(Tp.DURATION, 0, 10, 0)


def column(number: int, name: str, kind: FieldType, **more: Any) -> ColumnInfo:
    return ColumnInfo(id=number, name=name, offset=number - 1, type=kind, **more)


def handle_table() -> TableInfo:
    """t(id bigint primary key, name varchar(24))"""
    return TableInfo(7, "t", (column(1, "id", BIGINT_KEY), column(2, "name", VARCHAR)), pk_is_handle=True)


def keyless_table() -> TableInfo:
    """n(a bigint, b varchar(24))"""
    return TableInfo(8, "n", (column(1, "a", BIGINT), column(2, "b", VARCHAR)))


def clustered_table(kind: FieldType, *, length: int = -1) -> TableInfo:
    """c(k <kind>, v bigint, primary key(k[(length)]) clustered)"""
    index = IndexInfo(1, "PRIMARY", (IndexColumn("k", 0, length),), unique=True, primary=True)
    return TableInfo(9, "c", (column(1, "k", kind), column(2, "v", BIGINT)), indexes=(index,), is_common_handle=True)


def changing_table() -> TableInfo:
    """A column in every state, a virtual and a stored generated one."""
    return TableInfo(
        10,
        "w",
        (
            column(1, "id", BIGINT_KEY),
            column(2, "deleting", BIGINT, state=SchemaState.DELETE_ONLY),
            column(3, "writing", BIGINT, state=SchemaState.WRITE_ONLY),
            column(4, "filling", BIGINT, state=SchemaState.WRITE_REORGANIZATION),
            column(5, "leaving", BIGINT, state=SchemaState.DELETE_REORGANIZATION),
            column(6, "virtual", BIGINT, generated_expr="`id` + 1"),
            column(7, "stored", BIGINT, generated_expr="`id` * 2", generated_stored=True),
        ),
        pk_is_handle=True,
    )
