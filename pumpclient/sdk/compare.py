"""Compares an existing database or table with a declared one, for `if_not_exists`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexInfo
from binlog.tidb.table import DBInfo, TableInfo
from binlog.tidb.types import Flag

from pumpclient.sdk import schema as shape
from pumpclient.sdk import sql
from pumpclient.sdk.errors import SchemaDiffers
from pumpclient.sdk.table import Bound, Table, bound_table

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
    wanted = shape.build_table(declared, table_id=there.info.id, start_ts=there.info.update_timestamp)
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
        if key not in declared and not (accept_added and _has_default(column)):
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


def _has_default(column: ColumnInfo) -> bool:
    return not column.is_not_null or column.default is not None or column.default_bit is not None


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
