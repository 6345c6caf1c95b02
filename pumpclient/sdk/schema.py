"""Makes a TableInfo from a declaration, and applies ALTERs to it, with the ids, offsets and flags that TiDB assigns.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexColumn, IndexInfo
from binlog.tidb.table import TableInfo
from binlog.tidb.types import INTEGERS, Flag, Tp

from pumpclient.sdk.defaults import default_info
from pumpclient.sdk.errors import BadDeclaration, SchemaExists, SchemaNotFound
from pumpclient.sdk.table import Column, Index, Table, check_column, check_index, check_name

_KEY_FLAGS = int(Flag.UNIQUE_KEY | Flag.MULTIPLE_KEY)


def build_table(table: Table, *, table_id: int, start_ts: int) -> TableInfo:
    """Return the TableInfo that TiDB would store for this CREATE TABLE."""
    key = table.primary_key.columns
    columns = tuple(column_info(table.name, c, column_id=n + 1, offset=n) for n, c in enumerate(table.columns))
    by_name = {c.name: c for c in columns}
    is_handle = (
        table.clustered and len(key) == 1 and key[0][1] == -1 and by_name[key[0][0]].type.tp in INTEGERS - {Tp.YEAR}
    )
    indexes: list[IndexInfo] = []
    if key and not is_handle:
        indexes.append(_index(table.primary_key, columns, index_id=1))
    for declared in table.keys:
        indexes.append(_index(declared, columns, index_id=len(indexes) + 1))
    common = bool(key) and table.clustered and not is_handle
    info = TableInfo(
        id=table_id,
        name=table.name,
        columns=columns,
        indexes=tuple(indexes),
        charset=table.collate.split("_", 1)[0],
        collate=table.collate,
        pk_is_handle=is_handle,
        is_common_handle=common,
        common_handle_version=1 if common else 0,
        comment=table.comment,
        max_column_id=len(columns),
        max_index_id=len(indexes),
        update_timestamp=start_ts,
    )
    return with_key_flags(info)


def column_info(table: str, column: Column, *, column_id: int, offset: int) -> ColumnInfo:
    flag = column.type.flag
    if column.primary_key:
        flag |= Flag.PRI_KEY | Flag.NOT_NULL
    elif not column.is_nullable:
        flag |= Flag.NOT_NULL
    default = default_info(table, column)
    if flag & Flag.NOT_NULL and default.text is None:
        flag |= Flag.NO_DEFAULT_VALUE
    return ColumnInfo(
        id=column_id,
        name=column.name,
        offset=offset,
        type=replace(column.type, flag=int(flag)),
        default=default.text,
        default_bit=default.bit,
        comment=column.comment,
    )


def _index(key: Index, columns: Sequence[ColumnInfo], *, index_id: int) -> IndexInfo:
    offsets = {c.name.lower(): c for c in columns}
    parts: list[IndexColumn] = []
    for name, length in key.columns:
        column = offsets[name.lower()]
        whole = length == column.type.flen and column.type.tp in (Tp.VARCHAR, Tp.STRING)
        parts.append(IndexColumn(column.name, column.offset, -1 if whole else length))
    return IndexInfo(id=index_id, name=key.name, columns=tuple(parts), unique=key.unique, primary=key.name == "PRIMARY")


def with_key_flags(info: TableInfo) -> TableInfo:
    """Set UNIQUE on columns that are a unique key by themselves, and MULTIPLE on the first column of any other key."""
    flags = {c.offset: c.type.flag & ~_KEY_FLAGS for c in info.columns}
    for index in info.indexes:
        if index.primary:
            continue
        alone = index.unique and len(index.columns) == 1
        flags[index.columns[0].offset] |= int(Flag.UNIQUE_KEY if alone else Flag.MULTIPLE_KEY)
    columns = tuple(replace(c, type=replace(c.type, flag=flags[c.offset])) for c in info.columns)
    return replace(info, columns=columns)


def add_column(info: TableInfo, column: Column, *, after: str | None = None, first: bool = False) -> TableInfo:
    """ADD COLUMN: assign a new id and a place. Older rows get the column's default."""
    check_column(info.name, column)
    if column.primary_key:
        raise BadDeclaration(f"{info.name}.{column.name}: a column of the primary key cannot be added")
    if _find(info, column.name) is not None:
        raise SchemaExists(f"{info.name}: column {column.name} already exists")
    made = column_info(info.name, column, column_id=info.max_column_id + 1, offset=0)
    if default_info(info.name, column).is_now:
        raise BadDeclaration(f"{info.name}.{column.name}: an added column cannot have the current time as its default")
    made = replace(made, origin_default=made.default, origin_default_bit=made.default_bit)
    at = 0 if first else len(info.columns) if after is None else column_of(info, after).offset + 1
    columns = [*info.columns[:at], made, *info.columns[at:]]
    return _replaced(replace(info, max_column_id=made.id), columns)


def move_column(info: TableInfo, name: str, after: str | None) -> TableInfo:
    """Move a column after another one, or to the first place (None). Raises SchemaNotFound or BadDeclaration."""
    moved = column_of(info, name)
    others = [c for c in info.columns if c.id != moved.id]
    at = 0
    if after is not None:
        before = column_of(info, after)
        if before.id == moved.id:
            raise BadDeclaration(f"{info.name}.{name} cannot follow itself")
        at = others.index(before) + 1
    return _replaced(info, [*others[:at], moved, *others[at:]])


def drop_column(info: TableInfo, name: str) -> TableInfo:
    """DROP COLUMN. As in TiDB, a column cannot be dropped if it is in a key with other columns, or is the last
    column.
    """
    gone = column_of(info, name)
    if gone.is_primary:
        raise BadDeclaration(f"{info.name}.{name} is part of the primary key and cannot be dropped")
    if len(info.columns) == 1:
        raise BadDeclaration(f"{info.name}.{name} is the only column and cannot be dropped")
    kept: list[IndexInfo] = []
    for index in info.indexes:
        holds = any(part.offset == gone.offset for part in index.columns)
        if holds and len(index.columns) > 1:
            raise BadDeclaration(f"{info.name}.{name} is part of key {index.name}: drop the key first")
        if not holds:
            kept.append(index)
    return _replaced(replace(info, indexes=tuple(kept)), [c for c in info.columns if c.id != gone.id])


def _replaced(info: TableInfo, columns: Sequence[ColumnInfo]) -> TableInfo:
    """Give the columns their new order, and update their offsets, in keys too."""
    moved = tuple(replace(c, offset=n) for n, c in enumerate(columns))
    offset_of = {c.name: c.offset for c in moved}
    indexes = tuple(
        replace(index, columns=tuple(replace(part, offset=offset_of[part.name]) for part in index.columns))
        for index in info.indexes
    )
    return with_key_flags(replace(info, columns=moved, indexes=indexes))


def add_index(info: TableInfo, key: Index) -> TableInfo:
    check_name(f"{info.name}: index", key.name)
    if key.name.lower() == "primary":
        raise BadDeclaration(f"{info.name}: a primary key cannot be added")
    if any(index.name.lower() == key.name.lower() for index in info.indexes):
        raise SchemaExists(f"{info.name}: key {key.name} already exists")
    check_index(info.name, key, {c.name: c.type for c in info.columns})
    made = _index(key, info.columns, index_id=info.max_index_id + 1)
    return with_key_flags(replace(info, indexes=(*info.indexes, made), max_index_id=made.id))


def drop_index(info: TableInfo, name: str) -> TableInfo:
    kept = tuple(index for index in info.indexes if index.name.lower() != name.lower() or index.primary)
    if len(kept) == len(info.indexes):
        raise SchemaNotFound(f"{info.name}: there is no key {name}")
    return with_key_flags(replace(info, indexes=kept))


def _find(info: TableInfo, name: str) -> ColumnInfo | None:
    return next((c for c in info.columns if c.name.lower() == name.lower()), None)


def column_of(info: TableInfo, name: str) -> ColumnInfo:
    found = _find(info, name)
    if found is None:
        raise SchemaNotFound(f"{info.name}: there is no column {name}")
    return found
