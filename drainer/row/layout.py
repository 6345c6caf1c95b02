"""Maps the columns of a row, which has the layout of one TableInfo, to the columns of another (X-08). Pure values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten, missing_value, to_text
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType

from drainer.row.column_type import ColumnType, DecodedValue, TypeClass, type_class_of
from drainer.row.key import FoldKey, choose_key
from drainer.schema.view import TableAt


@dataclass(frozen=True, slots=True)
class Target:
    """One column of the destination's row. `default` is the decoded value of a row that lacks the column (D-TR-03).

    `old_column_id`: id and type of the column whose value it takes there, of a row from before its type was changed.
    """

    id: int
    name: str
    column_type: ColumnType
    default: DecodedValue
    old_column_id: tuple[int, FieldType] | None = None

    def inherit(self, value: Datum) -> DecodedValue:
        """The decoded value of a value of that column, cast as the DDL did. DecodeError where the type cannot hold
        it."""
        assert self.old_column_id is not None
        try:
            return self.column_type.decoded_value(flatten(to_text(value, self.old_column_id[1]), self.column_type.kind))
        except ValueError as error:
            raise DecodeError("value of another type", offset=0, detail=str(error)) from None


@dataclass(frozen=True, slots=True)
class Stored:
    """One column as it is stored in rows. `target`: its column index in the destination's row, -1 if it has none."""

    id: int
    kind: FieldType
    type_class: TypeClass
    target: int
    in_insert: bool  # inserts and updates carry it; deletes carry every column
    not_null: bool


@dataclass(frozen=True, slots=True)
class HandlePart:
    """One value that precedes an inserted row. `target` -1: it is skipped (a prefix, or the hidden rowid)."""

    kind: FieldType | None  # None: an int handle
    type_class: TypeClass
    target: int
    unsigned: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows written under `at`, for a destination whose table is `current`."""

    table_id: int
    at: TableInfo
    targets: tuple[Target, ...]
    stored: tuple[Stored, ...]
    handle: tuple[HandlePart, ...]
    has_rowid: bool
    key: FoldKey

    @property
    def column_types(self) -> tuple[ColumnType, ...]:
        """Return the form of each target."""
        return tuple([target.column_type for target in self.targets])


def replicated(table: TableInfo) -> tuple[ColumnInfo, ...]:
    """The columns a destination is given: public and not generated, in order (D-TR-02)."""
    return tuple(c for c in sorted(table.columns, key=lambda c: c.offset) if c.is_public and not c.is_generated)


def published(table: TableInfo) -> tuple[ColumnInfo, ...]:
    """Return the columns of a destination that does not compute generated columns. It includes stored generated
    columns, because rows contain their values."""
    return tuple(c for c in sorted(table.columns, key=lambda c: c.offset) if c.is_public and not c.is_virtual)


def layout_of(table: TableAt, *, stored_generated: bool = False) -> Layout:
    """`stored_generated`: the destination takes stored generated columns, too. DecodeError for column types that rows
    cannot carry."""
    known = table.at.columns_by_id
    targets = []
    for column in published(table.current) if stored_generated else replicated(table.current):
        written = known.get(column.id, column)
        column_type = ColumnType.of(written.type)
        old_column_id = None if column.id in known else _ancestor(column.id, table)
        targets.append(
            Target(
                column.id, column.name, column_type, column_type.decoded_value(missing_value(written)), old_column_id
            )
        )
    index_of = {target.id: n for n, target in enumerate(targets)}
    stored = tuple(
        Stored(
            id=c.id,
            kind=c.type,
            type_class=type_class_of(c.type),
            target=index_of.get(c.id, -1),
            in_insert=c.is_writable and not c.is_virtual,
            not_null=c.is_not_null,
        )
        for c in sorted(table.at.columns, key=lambda c: c.offset)
    )
    at, key = table.at, choose_key(table.current)
    return Layout(
        table_id=table.current.id,
        at=at,
        targets=tuple(targets),
        stored=stored,
        handle=_handle(at, index_of),
        has_rowid=not at.pk_is_handle and not at.is_common_handle,
        key=_moved(key, table.current, index_of) if stored_generated else key,
    )


def _moved(key: FoldKey, table: TableInfo, index_of: dict[int, int]) -> FoldKey:
    """The key with the column indexes of a row that has more columns."""
    to = [index_of[column.id] for column in replicated(table)]

    def moved(columns: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(to[at] for at in columns)

    unique = tuple(map(moved, key.unique))
    return replace(key, columns=moved(key.columns), row_key=moved(key.row_key), unique=unique)


def _ancestor(column_id: int, table: TableAt) -> tuple[int, FieldType] | None:
    before, known = dict(table.inherited), table.at.columns_by_id
    while column_id in before and column_id not in known:
        column_id = before.pop(column_id)
    found = known.get(column_id)
    return None if found is None else (found.id, found.type)


def _handle(at: TableInfo, index_of: dict[int, int]) -> tuple[HandlePart, ...]:
    if at.is_common_handle:
        index = at.primary_index()
        parts = index.columns if index is not None else ()
        found = []
        for part in parts:
            column = at.columns[part.offset]
            target = index_of.get(column.id, -1) if part.length == -1 else -1
            found.append(HandlePart(column.type, type_class_of(column.type), target, False))
        return tuple(found)
    key = at.handle_column
    if key is None:
        return (HandlePart(None, TypeClass.INT, -1, False),)
    return (HandlePart(None, TypeClass.INT, index_of.get(key.id, -1), key.is_unsigned),)
