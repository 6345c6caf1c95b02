"""A table as messages describe it: its columns with TiCDC's flags, and its handle key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property

from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import Tp

from drainer.row.column_type import ColumnType


class ColumnFlag(IntFlag):
    """The flags of a column in Open Protocol. Readers ignore higher bits."""

    BINARY = 1
    HANDLE_KEY = 2
    GENERATED = 4
    PRIMARY_KEY = 8
    UNIQUE_KEY = 16
    MULTIPLE_KEY = 32
    NULLABLE = 64
    UNSIGNED = 128


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `column_type`: the type of its values, which is the type under which the row was written. It differs
    from `info.type` if the column's type was changed after the row was written. `info`: the column's current
    definition."""

    name: str
    column_type: ColumnType
    flags: ColumnFlag
    info: ColumnInfo

    @property
    def in_handle(self) -> bool:
        return bool(self.flags & ColumnFlag.HANDLE_KEY)


@dataclass(frozen=True)
class Table:
    """One table under one TableInfo. `columns`: the columns that messages have, in the table's order: public, not
    virtual, and not left out by a column selector. Every row has a value for each of them. `version`: the schema
    version of `info`, which is the table's current definition. Tables with the same `key` are equal, so encoders cache
    what they compile under it."""

    schema: str
    info: TableInfo
    columns: tuple[Column, ...]
    version: int
    written_version: int

    @property
    def id(self) -> int:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def key(self) -> tuple[int, int, int, str]:
        return self.info.id, self.version, self.written_version, self.schema

    @cached_property
    def handle(self) -> tuple[int, ...]:
        """Return the positions in `columns` of the handle key's columns. Empty if the table has no handle key."""
        return tuple(column_index for column_index, column in enumerate(self.columns) if column.in_handle)

    @cached_property
    def is_keyed(self) -> bool:
        """Return whether a key identifies the table's rows upstream, even if messages do not have the columns of this
        key."""
        return handle_index(self.info) is not None

    @cached_property
    def column_indexes(self) -> dict[str, int]:
        """Return the position of each column by its name, spelled as in the table."""
        return {column.name: column_index for column_index, column in enumerate(self.columns)}

    def column_name(self, column_index: int) -> str:
        """Return the name of a column with those of its table and database, quoted, for errors."""
        return f"`{self.schema}`.`{self.name}`.`{self.columns[column_index].name}`"

    @property
    def is_partitioned(self) -> bool:
        return self.info.partition is not None


def table_of(
    schema: str, info: TableInfo, column_types: Sequence[tuple[int, ColumnType]], version: int, written_version: int
) -> Table:
    """Return a Table. `column_types`: id and type of each column for which rows have values, in the table's order."""
    flags = column_flags(info)
    by_id = info.columns_by_id
    columns = tuple(Column(by_id[id_].name, column_type, flags[id_], by_id[id_]) for id_, column_type in column_types)
    return Table(schema, info, columns, version, written_version)


def handle_index(info: TableInfo) -> IndexInfo | None:
    """Return the index that identifies rows: the primary key; otherwise the unique index with the fewest columns, then
    the lowest id, among those whose columns are all NOT NULL and not virtual. None if no index does."""
    primary = info.primary_index()
    return primary if primary is not None else smallest_key(info, info.unique_indexes())


def smallest_key(info: TableInfo, indexes: Iterable[IndexInfo]) -> IndexInfo | None:
    """Return the one of these unique indexes that identifies rows, chosen as in `handle_index`."""
    usable = [index for index in indexes if all(map(_tells_apart, info.index_columns(index)))]
    return min(usable, key=lambda index: (len(index.columns), index.id), default=None)


def _tells_apart(column: ColumnInfo) -> bool:
    return column.is_not_null and not column.is_virtual


def column_flags(info: TableInfo) -> dict[int, ColumnFlag]:
    """Return the flags of every column by its id."""
    flags = {column.id: _own_flags(column) for column in info.columns}
    chosen = handle_index(info)
    primary = info.primary_index()
    indexes = [index for index in info.indexes if index.is_public and not index.primary]
    for index in [*([primary] if primary is not None else []), *indexes]:
        for column in info.index_columns(index):
            if index.primary:
                flags[column.id] |= ColumnFlag.PRIMARY_KEY
            elif index.unique:
                flags[column.id] |= ColumnFlag.UNIQUE_KEY
            if len(index.columns) > 1:
                flags[column.id] |= ColumnFlag.MULTIPLE_KEY
            if chosen is not None and index.id == chosen.id and index.primary == chosen.primary:
                flags[column.id] |= ColumnFlag.HANDLE_KEY
    return flags


def _own_flags(column: ColumnInfo) -> ColumnFlag:
    flags = ColumnFlag(0)
    if column.type.charset == "binary":
        flags |= ColumnFlag.BINARY
    if column.is_generated:
        flags |= ColumnFlag.GENERATED
    if not column.is_not_null:
        flags |= ColumnFlag.NULLABLE
    if column.is_unsigned or column.type.tp in (Tp.YEAR, Tp.BIT):
        flags |= ColumnFlag.UNSIGNED
    return flags
