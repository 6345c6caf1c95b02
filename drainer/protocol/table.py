"""What encoders get: a table as messages describe it, with its columns, TiCDC's flags, its handle key and the text of a
column's type; and changes of its rows as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import cached_property
from typing import Any, Final

from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, INTEGERS, FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Words
from drainer.ddl.mysql_columns import literal
from drainer.row.column_type import ColumnType

# A column's type as text: its basic name, and its complete description as in TiDB's SHOW COLUMNS.

# (length, decimals) that TiDB shows if a type does not state them.
_DEFAULTS: Final = {
    Tp.BIT: (1, 0),
    Tp.TINY: (4, 0),
    Tp.SHORT: (6, 0),
    Tp.INT24: (9, 0),
    Tp.LONG: (11, 0),
    Tp.LONGLONG: (20, 0),
    Tp.DOUBLE: (22, -1),
    Tp.FLOAT: (12, -1),
    Tp.NEWDECIMAL: (10, 0),
    Tp.YEAR: (4, 0),
    Tp.STRING: (1, 0),
    Tp.VARCHAR: (5, 0),
    Tp.VAR_STRING: (5, 0),
}
_FRACTIONS: Final = frozenset({Tp.TIMESTAMP, Tp.DATETIME, Tp.DURATION})
_LENGTHS: Final = INTEGERS | {Tp.BIT, Tp.STRING, Tp.VARCHAR, Tp.VAR_STRING}


def default_length(kind: FieldType) -> tuple[int, int]:
    """Return the default (length, decimals) of a type. (-1, 0) if the type has none."""
    return _DEFAULTS.get(kind.tp, (-1, 0))


def basic_type(kind: FieldType) -> str:
    """Return the type without lengths: `int unsigned`, `varbinary`, `text`, …"""
    return kind.mysql_name + _attributes(kind)


def full_type(kind: FieldType) -> str:
    """Return the type with lengths: `int(10) unsigned`, `decimal(5,2)`, `enum('a','b')`, `datetime(3)`, …"""
    return kind.mysql_name + _size(kind) + _attributes(kind)


def _attributes(kind: FieldType) -> str:
    unsigned = kind.is_unsigned and kind.tp not in (Tp.BIT, Tp.YEAR)
    zerofill = bool(kind.flag & Flag.ZEROFILL) and kind.tp is not Tp.YEAR
    return (" unsigned" if unsigned else "") + (" zerofill" if zerofill else "")


def _size(kind: FieldType) -> str:
    default, default_decimals = default_length(kind)
    length = default if kind.flen < 0 else kind.flen
    decimals = default_decimals if kind.decimal < 0 else kind.decimal
    if kind.tp in (Tp.ENUM, Tp.SET):
        return f"({','.join(map(literal, kind.elems))})"
    if kind.tp in _FRACTIONS:
        return f"({kind.decimal})" if kind.decimal > 0 else ""
    if kind.tp in FLOATS:
        return f"({length},{decimals})" if kind.decimal > 0 else ""
    if kind.tp is Tp.NEWDECIMAL:
        return f"({length},{decimals})"
    return f"({length})" if kind.tp in _LENGTHS else ""


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
    """One column. `column_type`: the type under which the row was written, which is that of its values. It differs from
    `info.type` if the column's type was changed since. `info`: the current definition."""

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

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The columns, too: a DDL of another table that is merged with this one changes them, and no version."""
        return self.info.id, self.version, self.written_version, self.schema, self.columns

    @cached_property
    def handle(self) -> tuple[int, ...]:
        """Return the positions in `columns` of the handle key's columns. Empty if the table has no handle key."""
        return tuple(column_index for column_index, column in enumerate(self.columns) if column.in_handle)

    @cached_property
    def is_keyed(self) -> bool:
        """Return whether a key identifies the table's rows upstream, even if messages do not have its columns."""
        return handle_index(self.info) is not None

    @cached_property
    def column_indexes(self) -> dict[str, int]:
        """Return the position of each column by its name, spelled as in the table."""
        return {column.name: column_index for column_index, column in enumerate(self.columns)}

    def column_name(self, column_index: int) -> str:
        """Return the name of a column with those of its table and database, quoted, for errors."""
        return f"`{self.schema}`.`{self.name}`.`{self.columns[column_index].name}`"


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
    usable = [
        index for index in indexes if all(one.is_not_null and not one.is_virtual for one in info.index_columns(index))
    ]
    return min(usable, key=lambda index: (len(index.columns), index.id), default=None)


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


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of rows. All arrays have the same length. `order`: the position of each change among all changes of its
    segment, in upstream's order. `old` and `new`: Arrow arrays of decoded values (row/column_type.py), parallel to
    `table.columns`. `old` is None for inserts, `new` is None for deletes."""

    table: Table
    kind: Kind
    commit_ts: Words
    start_ts: Words
    order: Ints
    old: Columns | None
    new: Columns | None

    def __len__(self) -> int:
        return len(self.order)

    @property
    def are_read(self) -> bool:
        """Whether a first load read these rows from upstream: then their start_ts is equal to their commit_ts, which it
        is in no transaction."""
        return bool(len(self)) and int(self.start_ts[0]) == int(self.commit_ts[0])

    def take(self, chosen: Ints) -> RowChanges:
        """Return the changes at the positions `chosen`, in that order."""
        return self._part(chosen, lambda column: column.take(chosen))

    def slice(self, begin: int, count: int) -> RowChanges:
        """Return at most `count` changes from position `begin` on. Copies nothing."""
        return self._part(slice(begin, begin + count), lambda column: column.slice(begin, count))

    def _part(self, chosen: Any, part: Callable[[Any], Any]) -> RowChanges:
        """`chosen`: an index of numpy's; `part`: does the same for an Arrow array."""
        return replace(
            self,
            commit_ts=self.commit_ts[chosen],
            start_ts=self.start_ts[chosen],
            order=self.order[chosen],
            old=None if self.old is None else tuple(map(part, self.old)),
            new=None if self.new is None else tuple(map(part, self.new)),
        )

    @property
    def image(self) -> Columns:
        """Return the new image, for deletes the old one."""
        image = self.old if self.new is None else self.new
        assert image is not None
        return image
