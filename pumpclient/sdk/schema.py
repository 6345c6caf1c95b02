"""Makes a TableInfo of a declaration, applies ALTERs to it, and compares it with a declaration (`if_not_exists`). Pure.

Ids, offsets and flags are those that TiDB assigns. A column that is modified, changed or renamed keeps its id if its
encoding does not change. Otherwise it gets a new id at the same position, and its keys get new ids too. Rows of older
table handles carry the old id; drainers cast their values to the new type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from binlog.errors import DecodeError
from binlog.tidb.flatten import flatten, to_text
from binlog.tidb.table import ColumnInfo, DBInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import INTEGERS, FieldType, Flag, Tp

from pumpclient.sdk import sql
from pumpclient.sdk.errors import BadDeclaration, SchemaDiffers, SchemaExists, SchemaNotFound
from pumpclient.sdk.sql import type_sql
from pumpclient.sdk.table import NOW, Bound, Column, Index, Table, bound_table, check_column, check_index, check_name
from pumpclient.sdk.types import Retype, retype
from pumpclient.sdk.values import default_info, literal_info, stored_default

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
    if column.default is NOW:
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
    """DROP COLUMN. As in TiDB, not one that is in a key with other columns, or is the last column."""
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


def rename_column(info: TableInfo, name: str, new_name: str) -> TableInfo:
    """Rename a column; it keeps its id and place. Raises SchemaNotFound or SchemaExists."""
    check_name(f"{info.name}: column", new_name)
    column = column_of(info, name)
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
    """Make a column as declared: its name, type, nullable, default and comment. What is not declared is removed.

    Raises BadDeclaration if existing rows may not fit, or if the type of a primary key column would change.
    """
    info = rename_column(info, name, column.name)
    old = column_of(info, column.name)
    where = f"{info.name}.{name}"
    column = _declared(where, old, column)
    check_column(info.name, column)
    how = _how(info, where, old, column)
    made = column_info(info.name, column, column_id=old.id, offset=old.offset)
    if how is Retype.CAST:
        return _cast(info, old, made)
    made = replace(made, origin_default=old.origin_default, origin_default_bit=old.origin_default_bit)
    info = replace(info, columns=tuple(made if c.id == old.id else c for c in info.columns))
    _check_keys(info, made)
    return with_key_flags(info)


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
    return with_key_flags(info)


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


# The flags that a declaration gives. The other flags follow from defaults and keys, which are compared themselves.
_DECLARED_FLAGS = int(Flag.UNSIGNED | Flag.ZEROFILL)


def check_database(there: DBInfo, collate: str) -> None:
    """Raise SchemaDiffers if the database has another collation."""
    if there.collate != collate:
        raise SchemaDiffers(
            f"database {there.name} already exists, with collation {there.collate} and not {collate} as declared"
        )


def declared_table(there: Bound, declared: Table, *, accept_added: bool) -> Table:
    """Return the handle of a table that is as declared. Raise SchemaDiffers with the first difference. Ids and the
    table's history are ignored. `accept_added`: see Service.create_table."""
    wanted = build_table(declared, table_id=there.info.id, start_ts=there.info.update_timestamp)
    difference = next(_differences(there.info, wanted, accept_added=accept_added), None)
    if difference is not None:
        where = f"table {there.schema}.{there.info.name}"
        raise SchemaDiffers(f"{where} already exists and is not as declared: {difference}")
    ids = {column.name.lower(): column.id for column in there.info.columns}
    if len(ids) == len(wanted.columns):
        return bound_table(there)
    columns = tuple(replace(column, id=ids[column.name.lower()]) for column in wanted.columns)
    return bound_table(replace(there, info=replace(wanted, columns=columns)))


def _differences(there: TableInfo, wanted: TableInfo, *, accept_added: bool) -> Iterator[str]:
    columns = {column.name.lower(): column for column in there.public_columns if not column.hidden}
    declared = {column.name.lower(): column for column in wanted.columns}
    for key, column in declared.items():
        found = columns.get(key)
        if found is None:
            yield f"it has no column {column.name}"
        else:
            yield from _unlike(f"column {column.name}", _column_facts(found), _column_facts(column))
    for key, column in columns.items():
        has_default = not column.is_not_null or column.default is not None or column.default_bit is not None
        if key not in declared and not (accept_added and has_default):
            why = ", is NOT NULL and has no default" if accept_added else ""
            yield f"its column {column.name} is not declared{why}"
    if [key for key in columns if key in declared] != list(declared):
        yield f"its columns stand in the order {', '.join(columns)}, declared {', '.join(declared)}"
    yield from _unlike("the table", _table_facts(there), _table_facts(wanted))
    keys = {index.name.lower(): index for index in there.indexes if not index.primary}
    wanted_keys = {index.name.lower(): index for index in wanted.indexes if not index.primary}
    for name in keys.keys() | wanted_keys.keys():
        here, there_should = keys.get(name), wanted_keys.get(name)
        if accept_added and there_should is None and here is not None and not here.unique:
            continue
        yield from _unlike(f"key {name}", {"": _key(here)}, {"": _key(there_should)})


def _unlike(what: str, there: dict[str, str], wanted: dict[str, str]) -> Iterator[str]:
    for fact, value in wanted.items():
        if there[fact] != value:
            yield f"{what}{': ' if fact else ''}{fact} is {there[fact]}, declared {value}"


def _column_facts(column: ColumnInfo) -> dict[str, str]:
    default = column.default_bit if column.default_bit is not None else column.default
    return {
        "its type": sql.type_sql(replace(column.type, flag=column.type.flag & _DECLARED_FLAGS)),
        "NOT NULL": "set" if column.is_not_null else "not set",
        "its default": "none" if default is None else repr(default),
        "its comment": repr(column.comment),
    }


def _table_facts(info: TableInfo) -> dict[str, str]:
    primary = info.primary_index()
    key = ", ".join(_parts(primary)) if primary else ", ".join(c.name for c in info.columns if c.is_primary)
    return {
        "its primary key": f"({key})" if key else "none",
        "the kind of its primary key": "clustered" if info.pk_is_handle or info.is_common_handle else "not clustered",
        "its collation": info.collate,
        "its comment": repr(info.comment),
    }


def _key(index: IndexInfo | None) -> str:
    if index is None:
        return "missing"
    return f"{'UNIQUE' if index.unique else 'INDEX'} ({', '.join(_parts(index))})"


def _parts(index: IndexInfo) -> list[str]:
    return [part.name.lower() + (f"({part.length})" if part.length > 0 else "") for part in index.columns]
