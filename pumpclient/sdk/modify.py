"""MODIFY, CHANGE and RENAME COLUMN on a TableInfo, with the ids that TiDB assigns. Pure.

A column keeps its id if its encoding does not change. Otherwise it gets a new id at the same position, and its keys get
new ids too. Rows of older table handles carry the old id; drainers cast their values to the new type.
"""

from __future__ import annotations

from dataclasses import replace

from binlog.errors import DecodeError
from binlog.tidb.column import ColumnInfo
from binlog.tidb.flatten import flatten
from binlog.tidb.table import TableInfo
from binlog.tidb.types import INTEGERS, FieldType
from binlog.tidb.unflatten import to_text

from pumpclient.sdk import schema as shape
from pumpclient.sdk.defaults import literal_info, stored_default
from pumpclient.sdk.errors import BadDeclaration, SchemaExists
from pumpclient.sdk.retype import Retype, retype
from pumpclient.sdk.sql import type_sql
from pumpclient.sdk.table import Column, Index, check_column, check_index, check_name


def rename_column(info: TableInfo, name: str, new_name: str) -> TableInfo:
    """Rename a column; it keeps its id and place. Raises SchemaNotFound or SchemaExists."""
    check_name(f"{info.name}: column", new_name)
    column = shape.column_of(info, name)
    _must_be_plain(info, column)
    taken = next((c for c in info.columns if c.name.lower() == new_name.lower() and c.id != column.id), None)
    if taken is not None:
        raise SchemaExists(f"{info.name}: column {taken.name} already exists")
    columns = tuple(replace(c, name=new_name) if c.id == column.id else c for c in info.columns)
    indexes = tuple(
        replace(
            index,
            columns=tuple(replace(p, name=new_name) if p.offset == column.offset else p for p in index.columns),
        )
        for index in info.indexes
    )
    return replace(info, columns=columns, indexes=indexes)


def change_column(info: TableInfo, name: str, column: Column) -> TableInfo:
    """Replace a column's name, type, nullable, default and comment by the declaration. Properties not declared are
    removed.

    Raises BadDeclaration if existing rows may not fit, or if the type of a primary key column would change.
    """
    info = rename_column(info, name, column.name)
    old = shape.column_of(info, column.name)
    where = f"{info.name}.{name}"
    column = _declared(where, old, column)
    check_column(info.name, column)
    how = _how(info, where, old, column)
    made = shape.column_info(info.name, column, column_id=old.id, offset=old.offset)
    if how is Retype.CAST:
        return _cast(info, old, made)
    made = replace(made, origin_default=old.origin_default, origin_default_bit=old.origin_default_bit)
    info = replace(info, columns=tuple(made if c.id == old.id else c for c in info.columns))
    _check_keys(info, made)
    return shape.with_key_flags(info)


def _declared(where: str, old: ColumnInfo, column: Column) -> Column:
    """Return the declaration with the table's own value of `primary_key`."""
    if column.primary_key and not old.is_primary:
        raise BadDeclaration(f"{where}: primary_key=True, but the column is not part of the primary key")
    return replace(column, primary_key=old.is_primary)


def _how(info: TableInfo, where: str, old: ColumnInfo, column: Column) -> Retype:
    how = retype(old.type, column.type)
    was, now = type_sql(old.type), type_sql(column.type)
    widened = how is Retype.SAME and old.type.tp in INTEGERS and column.type.tp in INTEGERS  # keys hold 64 bits
    if old.is_primary and was != now and not widened:
        raise BadDeclaration(
            f"{where} is part of the primary key: its type {was} cannot become {now}; only an integer may get more "
            f"bytes there"
        )
    if how is None:
        raise BadDeclaration(
            f"{where}: {was} cannot become {now}: a value that was written as {was} may not fit or would change, and "
            "the SDK cannot check existing rows. Add a column of the new type, copy every row, and drop the old column"
        )
    if column.is_nullable is False and not old.is_not_null:
        raise BadDeclaration(
            f"{where}: nullable=False, but existing rows may hold NULL; the SDK cannot check existing rows"
        )
    in_key = any(part.offset == old.offset for index in info.indexes for part in index.columns)
    if in_key and old.type.is_string and column.type.is_string and old.type.collate != column.type.collate:
        raise BadDeclaration(
            f"{where}: the collation {old.type.collate} cannot become {column.type.collate} while the column is in a "
            f"key: drop the key first"
        )
    return how


def _cast(info: TableInfo, old: ColumnInfo, made: ColumnInfo) -> TableInfo:
    """Give the column and every key that contains it a new id."""
    origin, bit = _cast_default(old, made.type)
    made = replace(made, id=info.max_column_id + 1, origin_default=origin, origin_default_bit=bit)
    columns = tuple(made if c.id == old.id else c for c in info.columns)
    last, indexes = info.max_index_id, []
    for index in info.indexes:
        if any(part.offset == old.offset for part in index.columns):
            last += 1
            index = replace(index, id=last)
        indexes.append(index)
    info = replace(info, columns=columns, indexes=tuple(indexes), max_column_id=made.id, max_index_id=last)
    _check_keys(info, made)
    return shape.with_key_flags(info)


def _cast_default(old: ColumnInfo, kind: FieldType) -> tuple[str | None, bytes | None]:
    """Return, in the new type, the default of rows that are older than the column."""
    if old.origin_default is None:
        return None, None
    datum = stored_default(old.type, old.origin_default, old.origin_default_bit)
    try:
        found = literal_info(kind, flatten(to_text(datum, old.type), kind))
    except (DecodeError, ValueError) as error:
        raise BadDeclaration(f"{old.name}: the default of older rows, {old.origin_default!r}: {error}") from None
    return found.text, found.bit


def _check_keys(info: TableInfo, changed: ColumnInfo) -> None:
    types = {c.name: c.type for c in info.columns}
    for index in info.indexes:
        if any(part.offset == changed.offset for part in index.columns):
            parts = tuple((part.name, part.length) for part in index.columns)
            check_index(info.name, Index(index.name, parts, index.unique), types)


def _must_be_plain(info: TableInfo, column: ColumnInfo) -> None:
    if column.is_generated or any(c.is_generated for c in info.columns) or info.partition is not None:
        raise BadDeclaration(
            f"{info.name}.{column.name}: the table has generated columns or partitions, whose expressions the SDK does "
            f"not rewrite"
        )
