"""Tables and rows of Open Protocol as its own documents describe them: by name, type code, flags and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from binlog.tidb.json import parse_json
from binlog.tidb.table import ColumnInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.time import parse_datetime, parse_duration
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, TIMES, FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.event import Value
from drainer.protocol.table import Column, ColumnFlag, RowChanges, Table
from drainer.row.column_type import ColumnType, DecodedValue
from tests.support.row_changes import make_changes

MEMBERS = {"name", "type", "flag", "value", "value_hex", "value_bytes_hex"}
Described = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a row as it is described."""

    name: str
    kind: FieldType
    flags: ColumnFlag
    decoded_value: DecodedValue
    seen: Value


def cell_of(given: Described) -> Cell:
    """`value` is what the document has, but for binary strings and BLOBs, which come in hexadecimal digits."""
    assert set(given) <= MEMBERS, f"members {sorted(given)}, known are {sorted(MEMBERS)}"
    tp, flags = Tp(given["type"]), ColumnFlag(given["flag"])
    value = given.get("value")
    digits = given.get("value_hex", given.get("value_bytes_hex"))
    if digits is not None:
        value = bytes.fromhex(digits)
    fsp = len(value.partition(".")[2]) if isinstance(value, str) and tp in TIMES | {Tp.DURATION, Tp.NEWDECIMAL} else 0
    charset = ("binary", "binary") if flags & ColumnFlag.BINARY else ("utf8mb4", "utf8mb4_bin")
    own = (Flag.UNSIGNED if flags & ColumnFlag.UNSIGNED and tp in INTEGERS and tp is not Tp.YEAR else 0) | (
        0 if flags & ColumnFlag.NULLABLE else Flag.NOT_NULL
    )
    elems = tuple(f"e{n}" for n in range(64)) if tp in (Tp.ENUM, Tp.SET) else ()
    kind = FieldType(tp, int(own), 64, fsp, *charset, elems)
    decoded_value = None if value is None else _decoded_value(tp, value)
    seen: Value = decoded_value
    if tp in STRINGS and isinstance(decoded_value, bytes):
        seen = decoded_value if flags & ColumnFlag.BINARY else decoded_value.decode()
    elif tp in TIMES | {Tp.DURATION, Tp.JSON}:
        seen = value
    return Cell(given["name"], kind, flags, decoded_value, seen)


def _decoded_value(tp: Tp, value: Any) -> DecodedValue:
    if tp in INTEGERS | {Tp.ENUM, Tp.SET, Tp.BIT}:
        return int(value)
    if tp in FLOATS:
        return float(value)
    if tp in TIMES:
        return int(parse_datetime(value if ":" in value else f"{value} 00:00:00"))
    if tp is Tp.DURATION:
        return int(parse_duration(value))
    if tp is Tp.JSON:
        return bytes(parse_json(value))
    if tp in STRINGS:
        return value if isinstance(value, bytes) else str(value).encode()
    return str(value)


def table_of_cells(
    schema: str, name: str, cells: Sequence[Cell], *, has_row_id: bool = False, partition_id: int = 0
) -> Table:
    """`has_row_id`: the integer handle column is the row's id; `partition_id`: the one partition of the table."""
    kinds = [
        replace(c.kind, flag=c.kind.flag | Flag.PRI_KEY) if has_row_id and c.flags & ColumnFlag.HANDLE_KEY else c.kind
        for c in cells
    ]
    infos = tuple(
        ColumnInfo(id=n + 1, name=c.name, offset=n, type=kind)
        for n, (c, kind) in enumerate(zip(cells, kinds, strict=True))
    )
    parts = None
    if partition_id:
        whole = PartitionDefinition(partition_id, "p0", less_than=("MAXVALUE",))
        parts = PartitionInfo(PartitionType.RANGE, expr=f"`{cells[0].name}`", definitions=(whole,))
    info = TableInfo(id=100, name=name, columns=infos, indexes=(), pk_is_handle=has_row_id, partition=parts)
    columns = tuple(Column(c.name, ColumnType.of(c.kind), c.flags, i) for c, i in zip(cells, infos, strict=True))
    return Table(schema, info, columns, 1, 1)


def row_of(given: Described) -> tuple[RowChanges, list[Cell] | None, list[Cell] | None]:
    """One change: its `op`, `columns` and `pre_columns`; and its old and new cells."""
    op = given.get("op", "insert")
    new = [cell_of(c) for c in given["columns"]] if op != "delete" else None
    old = [cell_of(c) for c in given["pre_columns"]] if op != "insert" else None
    cells = new if new is not None else old
    assert cells is not None
    row_id = given.get("row_id", 0)
    table = table_of_cells(
        given["schema"],
        given["table"],
        cells,
        has_row_id=bool(row_id),
        partition_id=given.get("physical_partition_id", 0),
    )
    if row_id:
        assert [cells[place].decoded_value for place in table.handle] == [row_id], (
            "the row id is that of an integer key"
        )
    images = [None if image is None else [[cell.decoded_value for cell in image]] for image in (old, new)]
    changes = make_changes(table, Kind[op.upper()], old=images[0], new=images[1], commit_ts=given["commit_ts"])
    return changes, old, new
