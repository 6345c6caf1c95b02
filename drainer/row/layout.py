"""Maps the columns of a row, which has the layout of one TableInfo, to the columns of another (X-08), and says by which
key the changes of these rows may be folded, and when two keys are the same (rules 9: what may be folded, 10: equal
keys, and 13: what is switched off). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten, missing_value, to_text
from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import UNSPECIFIED, FieldType

from drainer.row.column_type import ColumnType, DecodedValue, TypeClass, shown_as, type_class_of
from drainer.schema.merged import SOURCE_ID
from drainer.schema.view import TableAt

# Collations that compare bytes but ignore trailing spaces (PAD SPACE), in TiDB and in MySQL and MariaDB.
PADDED = frozenset({"utf8mb4_bin", "utf8_bin", "utf8mb3_bin", "latin1_bin", "ascii_bin", "gbk_bin"})
EXACT = frozenset({"binary", "utf8mb4_0900_bin"})
WITH_FRACTION = frozenset({TypeClass.DECIMAL, TypeClass.DATETIME, TypeClass.TIME})


class Same(Enum):
    """How a key column is compared."""

    EXACT = 0
    PADDED = 1  # trailing spaces do not count
    TRIMMED = 2  # trailing zeros of a fraction do not count
    CONSTANT = 3  # the same in all rows of the table, so it is not compared


@dataclass(frozen=True, slots=True)
class FoldKey:
    """The key by which a table's changes are folded. `columns`: indexes in the destination's row; empty if the table's
    changes must stay in order, and then `why` gives the reason.

    `imaged`: equal keys may be written differently, so every written form must be kept. `row_key` and `unique`: see
    TableShape.
    """

    name: str
    columns: tuple[int, ...]
    same: tuple[Same, ...]
    why: str
    others: tuple[str, ...]
    row_key: tuple[int, ...] = ()
    unique: tuple[tuple[int, ...], ...] = ()

    @property
    def imaged(self) -> bool:
        return any(same in (Same.PADDED, Same.TRIMMED) for same in self.same)


def choose_key(table: TableInfo) -> FoldKey:
    """Return the primary key if rows can be folded by it, else the first unique key by which they can. A table that
    upserts folds by its only unique key: with two unique keys a row may replace a row of another key, and a fold would
    hide the states in between.
    """
    found = _fold_key(table)
    if not table.upserts:
        return found
    keys = list(_unique_keys(table))
    unique = tuple(columns for columns, _ in keys)
    if found.columns and not found.others:
        return replace(found, unique=unique)
    why = found.why or f"{', '.join(found.others)} beside {found.name}, and nobody checks them upstream"
    names = tuple(index.name for index in table.unique_indexes())
    row_key = next((columns for columns, takes_null in keys if not takes_null), ())
    return FoldKey("", (), (), why, names, row_key, unique)


def _unique_keys(table: TableInfo) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield the columns' indexes for every unique key that has no prefix and whose columns are all in the destination's
    row, and whether it takes NULL. The primary key is the first."""
    index_of = _index_of(table)
    for index in table.unique_indexes():
        parts = table.index_columns(index)
        whole = all(part.length == UNSPECIFIED for part in index.columns)
        if whole and all(column.id in index_of for column in parts):
            yield tuple(index_of[column.id] for column in parts), table.takes_null(index)


def _index_of(table: TableInfo) -> dict[int, int]:
    """Column id → column index in the destination's row."""
    return {column.id: number for number, column in enumerate(replicated(table))}


def _fold_key(table: TableInfo) -> FoldKey:
    index_of = _index_of(table)
    indexes = table.unique_indexes()
    reasons = []
    for index in indexes:
        parts = table.index_columns(index)
        why = _refusal(index, parts, index_of)
        if not why:
            others = tuple(i.name for i in indexes if i is not index)
            same = tuple(Same.CONSTANT if c.id == SOURCE_ID else _same(c.type) for c in parts)
            return FoldKey(index.name, tuple(index_of[c.id] for c in parts), same, "", others)
        reasons.append(f"{index.name}: {why}")
    why = "; ".join(reasons) or "no primary or unique key"
    return FoldKey("", (), (), why, tuple(i.name for i in indexes))


def comparison(kind: FieldType) -> Same | None:
    """How values of a type are compared in a key, None where that is not known here."""
    type_class = type_class_of(kind)
    if type_class in (TypeClass.FLOAT, TypeClass.JSON):
        return None
    if type_class is TypeClass.TEXT:
        if kind.collate in PADDED:
            return Same.PADDED
        return Same.EXACT if kind.collate in EXACT else None
    return _same(kind)


def _same(kind: FieldType) -> Same:
    type_class = type_class_of(kind)
    if type_class is TypeClass.TEXT and kind.collate in PADDED:
        return Same.PADDED
    # A column may get more fraction digits between two rows of one segment; 1.5 and 1.50 are one key.
    fraction = type_class in WITH_FRACTION and kind.decimal != 0
    return Same.TRIMMED if fraction else Same.EXACT


def _refusal(index: IndexInfo, parts: tuple[ColumnInfo, ...], index_of: dict[int, int]) -> str:
    """Why changes may not be folded by this key, '' if they may."""
    for part, column in zip(index.columns, parts, strict=True):
        if column.id not in index_of:
            return f"column {column.name} is generated or not public"
        if part.length != UNSPECIFIED:
            return f"holds a prefix of {column.name}"
        # A primary key's columns are NOT NULL even where an old TableInfo lacks the flag.
        if not column.is_not_null and not index.primary:
            return f"column {column.name} may be NULL"
        if comparison(column.type) is None:
            kind = column.type
            return f"column {column.name} is {kind.mysql_name}" + (f" {kind.collate}" if kind.is_string else "")
    return ""


def trim_fraction(text: bytes) -> bytes:
    """`1.50` and `1.5`, `00:00:01.000` and `00:00:01` are the same value."""
    return text.rstrip(b"0").rstrip(b".") if b"." in text else text


def compared_as(column_type: ColumnType, same: Same) -> Callable[[Any], Any] | None:
    """From a decoded value that is not NULL to what is compared of it: bytes, or a number. None: the decoded value
    itself."""
    shown = shown_as(column_type)
    if same is Same.PADDED and column_type.type_class is TypeClass.TEXT:
        return lambda value: value.rstrip(b" ")
    if same is Same.TRIMMED:
        return lambda value: trim_fraction(shown(value))
    return None if column_type.type_class in (TypeClass.INT, TypeClass.TEXT) else shown


def key_function(key: FoldKey, column_types: Sequence[ColumnType]) -> Callable[[Sequence[Any]], object]:
    """From a row's decoded values to its key as compared: of one column that, else a tuple. DecodeError where a column
    is NULL or is no value of its type."""
    compared = [(at, same) for at, same in zip(key.columns, key.same, strict=True) if same is not Same.CONSTANT]
    parts = [(at, compared_as(column_types[at], same)) for at, same in compared]
    detail = f"{key.name} has a NULL"

    def whole(cells: Sequence[Any]) -> object:
        found = []
        for at, compare in parts:
            value = cells[at]
            if value is None:
                raise DecodeError("key", offset=0, detail=detail)
            found.append(value if compare is None else compare(value))
        return tuple(found)

    def single(cells: Sequence[Any]) -> object:
        value = cells[column_index]
        if value is None:
            raise DecodeError("key", offset=0, detail=detail)
        return value if own is None else own(value)

    if len(parts) != 1:
        return whole
    ((column_index, own),) = parts
    return single


def identity(key: object) -> bytes:
    """A fold key as compared, as bytes, one for one, in the order of whole numbers."""
    if isinstance(key, int):
        return (key + 0x8000_0000_0000_0000).to_bytes(9, "big")
    if isinstance(key, tuple):
        return b"".join([_part(cell) for cell in key])
    return _bytes(key)


def _bytes(cell: object) -> bytes:
    return cell if isinstance(cell, bytes) else str(cell).encode()


def _part(cell: object) -> bytes:
    if isinstance(cell, int):
        return b"\x01" + identity(cell)
    return b"\x02" + _bytes(cell).replace(b"\0", b"\0\xff") + b"\0\0"


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
