"""TableInfos by hand for tests of DDL, and the statements between two of them."""

from __future__ import annotations

from dataclasses import replace

from binlog.tidb.document import Json
from binlog.tidb.job import ActionType
from binlog.tidb.table import (
    ColumnInfo,
    IndexColumn,
    IndexInfo,
    PartitionDefinition,
    PartitionInfo,
    PartitionType,
    TableInfo,
)
from binlog.tidb.types import FieldType, Tp

from drainer.ddl.mysql_columns import Dialect
from drainer.ddl.mysql_tables import alter_table
from drainer.ddl.table_diff import table_diff
from drainer.sink.mysql.ddl.job_plan import Server

MYSQL = Server("mysql").dialect()
MARIADB = Server("mariadb").dialect()

INT = FieldType(Tp.LONG, flen=11)
TEXT = FieldType(Tp.VARCHAR, flen=9, charset="utf8mb4", collate="utf8mb4_bin")
STAMP = FieldType(Tp.TIMESTAMP, flen=19)


def column(number: int, name: str, kind: FieldType = INT, flag: int = 0, **more: object) -> ColumnInfo:
    return ColumnInfo(id=number, name=name, offset=0, type=replace(kind, flag=flag), **more)  # type: ignore[arg-type]


def table(
    *columns: ColumnInfo, keys: tuple[IndexInfo, ...] = (), parts: PartitionInfo | None = None, **more: object
) -> TableInfo:
    """Table 10, `t`; `keys` name columns by their place."""
    placed = tuple(replace(c, offset=at) for at, c in enumerate(columns))
    return TableInfo(10, "t", placed, keys, partition=parts, **more)  # type: ignore[arg-type]


def key(
    name: str, *offsets: int, unique: bool = False, primary: bool = False, length: int = -1, number: int = 1,
    invisible: bool = False, comment: str = "",
) -> IndexInfo:  # fmt: skip
    parts = tuple(IndexColumn("", at, length) for at in offsets)
    return IndexInfo(number, name, parts, unique=unique, primary=primary, invisible=invisible, comment=comment)


def ranges(*bounds: tuple[int, str, str]) -> PartitionInfo:
    """RANGE partitions of `a`: (id, name, bound)."""
    definitions = tuple(PartitionDefinition(i, name, less_than=(bound,)) for i, name, bound in bounds)
    return PartitionInfo(PartitionType.RANGE, "`a`", definitions=definitions)


def foreign_key(number: int, name: str, **more: Json) -> dict[str, Json]:
    """`fk_info` of a key on `a` that refers to d.p (id)."""
    return {
        "id": number, "fk_name": {"O": name, "L": name}, "ref_schema": {"O": "d", "L": "d"},
        "ref_table": {"O": "p", "L": "p"}, "ref_cols": [{"O": "id", "L": "id"}], "cols": [{"O": "a", "L": "a"}],
        "state": 5, **more,
    }  # fmt: skip


def altered(
    before: TableInfo,
    after: TableInfo,
    kind: ActionType = ActionType.MULTI_SCHEMA_CHANGE,
    *,
    query: str = "",
    dialect: Dialect = MYSQL,
) -> list[str]:
    """The statements from one to the other, without their common head."""
    diff = table_diff(before, after, kind=kind, query=query)
    head = "ALTER TABLE `d`.`t` "
    found = alter_table("d", before, after, diff, dialect)
    assert all(text.startswith(head) for text in found)
    return [text.removeprefix(head) for text in found]
