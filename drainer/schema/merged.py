"""Several tables of upstream as one of the destination (merged shards). Pure.

The destination's table is the union of its *parts*, the tables of upstream that go to its name, and has one column
more, the source column: the part that a row comes from. It is the last column of the primary key and of each unique
key, so rows of two parts never conflict. Columns are matched by name; a row has in a column that its part lacks what a
row has that is older than the column. A unique key is there while all parts have it, so no row that upstream accepted
is refused; any other index while one part has it. A DDL of a part is the difference of the unions before and after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from binlog.errors import ConfigError
from binlog.tidb.flatten import missing_value, to_text
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import literal
from drainer.ddl.table_diff import paired, same_definition
from drainer.schema.errors import RuleRefused

# Ids that no row has: of the source column, and from there downwards of columns that only other parts have.
SOURCE_ID: Final = -2  # -1 is that of _tidb_rowid
_OTHERS_ID: Final = -3
_SOURCE_TYPE: Final = FieldType(Tp.VARCHAR, Flag.NOT_NULL, flen=129, charset="utf8mb4", collate="utf8mb4_bin")

Destination = tuple[str, str, str]  # schema, table and source column in lower case
IndexParts = tuple[tuple[str, int], ...]  # (column in lower case, prefix length) of each part


@dataclass(frozen=True, slots=True)
class Part:
    """A table of upstream that is merged. `source`: its name there; `schema`, `info`: its table as the other rules
    leave it; `column`: the name of the source column."""

    source: str
    schema: str
    info: TableInfo
    column: str

    @property
    def destination(self) -> Destination:
        """Equal for the parts of one table."""
        return self.schema.lower(), self.info.name.lower(), self.column.lower()

    @property
    def source_column(self) -> ColumnInfo:
        """A part of the primary key by its flag, too, which is all that some formats show of it."""
        flag = _SOURCE_TYPE.flag | Flag.PRI_KEY * (self.info.primary_index() is not None)
        return ColumnInfo(SOURCE_ID, self.column, 0, replace(_SOURCE_TYPE, flag=flag), origin_default=self.source)


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """What the parts have together. `columns`, `indexes` (those that are not unique): by name in lower case, of the
    first part that has it. `keys`: the primary key, and the unique keys that all parts have."""

    columns: Mapping[str, ColumnInfo]
    keys: Mapping[tuple[str, IndexParts], IndexInfo]
    indexes: Mapping[str, tuple[IndexInfo, IndexParts]]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Union:
        """Raises RuleRefused."""
        first = parts[0]
        columns: dict[str, ColumnInfo] = {}
        indexes: dict[str, tuple[IndexInfo, IndexParts]] = {}
        keys = _keys(first.info)
        for part in parts:
            for column in part.info.public_columns:
                columns.setdefault(column.name.lower(), column)
            for index in part.info.indexes:
                if index.is_public and not index.unique and not index.primary:
                    indexes.setdefault(index.name.lower(), (index, _parts(part.info, index)))
            theirs = _keys(part.info)
            keys = {key: index for key, index in keys.items() if key in theirs}
            shown = [_primary(one.info) for one in (first, part)]
            if shown[0] != shown[1] or (part is not first and part.source == first.source):
                raise RuleRefused(
                    f"tables {first.source} ({shown[0]}) and {part.source} ({shown[1]}) both go to {part.schema}."
                    f"{part.info.name}, where names and primary keys must be of one kind: route them to other names"
                )
        if first.column.lower() in columns:
            raise RuleRefused(f"{first.source}, or a table that is merged with it, has a column {first.column} already")
        return cls(columns, keys, indexes)


def _parts(info: TableInfo, index: IndexInfo) -> IndexParts:
    return tuple((info.columns[part.offset].name.lower(), part.length) for part in index.columns)


def _keys(info: TableInfo) -> dict[tuple[str, IndexParts], IndexInfo]:
    return {(index.name.lower(), _parts(info, index)): index for index in info.unique_indexes()}


def _primary(info: TableInfo) -> str:
    index = info.primary_index()
    return "no primary key" if index is None else "primary key " + ", ".join(name for name, _ in _parts(info, index))


def merged(part: Part, union: Union) -> TableInfo:
    """The destination's table for the rows of one part: its own columns first, with their ids."""
    return _table(part.info, _columns(part, part, union), union)


def _columns(own: Part | None, named: Part, union: Union) -> tuple[ColumnInfo, ...]:
    mine = () if own is None else own.info.columns
    names = {column.name.lower() for column in mine}
    others = (column for name, column in union.columns.items() if name not in names)
    return (*mine, *(replace(column, id=_OTHERS_ID - n) for n, column in enumerate(others)), named.source_column)


def _table(base: TableInfo, columns: Sequence[ColumnInfo], union: Union) -> TableInfo:
    placed = tuple(replace(column, offset=offset) for offset, column in enumerate(columns))
    at = {column.name.lower(): column for column in placed}

    def index(one: IndexInfo, parts: IndexParts) -> IndexInfo:
        of = (*parts, (placed[-1].name.lower(), -1)) if one.unique or one.primary else parts
        return replace(one, columns=tuple(IndexColumn(at[name].name, at[name].offset, length) for name, length in of))

    return replace(
        base,
        columns=placed,
        indexes=(
            *(index(one, parts) for (_, parts), one in union.keys.items()),
            *(index(one, parts) for one, parts in union.indexes.values()),
        ),
        pk_is_handle=False,
        is_common_handle=base.pk_is_handle or base.is_common_handle,
        partition=None,
        rest={name: value for name, value in base.rest.items() if name not in ("fk_info", "constraint_info")},
    )


@dataclass(frozen=True, slots=True)
class SourceRows:
    """What a DDL does to the rows of a part: they are deleted, or get the missing values of the columns `sets`.
    `source`: the source column; its missing value is what these rows have in it."""

    source: ColumnInfo
    sets: tuple[ColumnInfo, ...] = ()

    def sql(self, schema: str, info: TableInfo) -> str:
        """The statement for a server of the MySQL family."""
        table, where = quoted(schema, info.name), f"WHERE {quoted(self.source.name)} = {_value(self.source)}"
        if not self.sets:
            return f"DELETE FROM {table} {where}"
        texts = {column.name.lower(): f"{quoted(column.name)} = {_value(column)}" for column in self.sets}
        for column in info.public_columns:
            if column.type.flag & Flag.ON_UPDATE_NOW:
                texts.setdefault(column.name.lower(), f"{quoted(column.name)} = {quoted(column.name)}")
        return f"UPDATE {table} SET {', '.join(texts.values())} {where}"


def _value(column: ColumnInfo) -> str:
    text = to_text(missing_value(column), column.type)
    if text is None:
        return "NULL"
    return f"x'{text.hex()}'" if isinstance(text, bytes) else literal(text)


def merged_change(
    before: Part | None, after: Part | None, others: Sequence[Part], *, query: str, emptied: bool
) -> tuple[TableInfo, TableInfo, SourceRows | None]:
    """What a DDL of one part does to the destination's table: (before, after, rows). `before` None: the part is
    created; `after` None: it is dropped; `emptied`: its rows are deleted. Raises ConfigError, RuleRefused."""
    first, last = before or after, after or before
    assert first is not None and last is not None
    if before is not None and after is not None:
        _check_same_names(before.info, after.info, query)
    was, now = (Union.of([*filter(None, [one]), *others]) for one in (before, after))
    own, new = (set[str]() if one is None else {c.name.lower() for c in one.info.columns} for one in (before, after))
    old_columns, new_columns = _columns(before, first, was), _columns(after, last, now)
    there, sets = set[str](), list[ColumnInfo]()
    theirs = [column for part in others for column in part.info.public_columns]
    known = {column.name.lower(): column for column in old_columns}
    for column in new_columns:
        name = column.name.lower()
        if name not in known:
            continue
        stays, goes = name in own and name in new, name in own and name not in new
        alike = any(one.name.lower() == name and same_definition(one, column) for one in theirs)
        if column.id != SOURCE_ID and (alike or not stays):
            there.add(name)
        differs = not stays and missing_value(known[name]) != missing_value(column)
        if name in new and name not in own:  # rows got the value of a part, or the default that it was created with
            values = [one for one in theirs if one.name.lower() == name]
            differs = any(missing_value(one) != missing_value(column) or _fills_another(one) for one in values)
        if (goes or differs) and not column.is_generated:
            sets.append(column)
    rows = SourceRows(first.source_column, () if emptied or after is None else tuple(sets))
    changes_rows = before is not None and (emptied or after is None or sets)
    old_columns = _aligned(old_columns, new_columns, there)
    return _table(first.info, old_columns, was), _table(last.info, new_columns, now), rows if changes_rows else None


def _fills_another(column: ColumnInfo) -> bool:
    """Whether ADD COLUMN may fill rows with another value than a row has that lacks the column."""
    new = column.default, column.default_bit
    return new not in ((None, None), (column.origin_default, column.origin_default_bit))


def _check_same_names(before: TableInfo, after: TableInfo, query: str) -> None:
    pairs = paired(before.public_columns, after.public_columns, query)
    for column in after.public_columns:
        was = pairs.get(column.id, column).name
        if was.lower() != column.name.lower():
            raise ConfigError(f"column {was}, which others may have, gets the name {column.name}")


def _aligned(
    before: Sequence[ColumnInfo], after: Sequence[ColumnInfo], there: Collection[str]
) -> tuple[ColumnInfo, ...]:
    """`before`, in which the columns named `there` are replaced by those of `after`, at their positions: no statement
    is made for them."""
    placed = [column for column in before if column.name.lower() not in there]
    at = -1
    for column in after:
        name = column.name.lower()
        if name in there:
            at += 1
            placed.insert(at, column)
        else:
            at = next((n for n, one in enumerate(placed) if one.name.lower() == name), at)
    return tuple(placed)
