"""DDLs as Debezium's schema change events: the statement, and the table after it."""

from __future__ import annotations

from typing import Final

from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import BLOBS, FieldType, Flag, Tp

from drainer.protocol.debezium.schema import NEVER_UNSIGNED, Document, fields_of, source_schema
from drainer.protocol.encoder import Ddl
from drainer.protocol.table import Table, default_length

_CREATES: Final = frozenset({ActionType.CREATE_TABLE, ActionType.CREATE_TABLES, ActionType.CREATE_VIEW})
_DROPS: Final = frozenset({ActionType.DROP_TABLE, ActionType.DROP_VIEW})
_RENAMES: Final = frozenset({ActionType.RENAME_TABLE, ActionType.RENAME_TABLES})

# Numbers of java.sql.Types, as in Debezium's MySQL connector. Those of Canal-JSON differ.
_JDBC: Final = {
    Tp.TINY: 5,
    Tp.SHORT: 5,
    Tp.INT24: 4,
    Tp.LONG: 4,
    Tp.YEAR: 4,
    Tp.LONGLONG: -5,
    Tp.FLOAT: 6,
    Tp.DOUBLE: 8,
    Tp.NEWDECIMAL: 3,
    Tp.TIMESTAMP: 2014,
    Tp.DATETIME: 93,
    Tp.DATE: 91,
    Tp.NEWDATE: 91,
    Tp.DURATION: 92,
    Tp.ENUM: 1,
    Tp.SET: 1,
    Tp.BIT: -7,
    Tp.JSON: 1111,
}
_STRINGS: Final = {Tp.STRING: (1, -2), Tp.VARCHAR: (12, -3), Tp.VAR_STRING: (12, -3)}  # text, binary
_OTHER_STRINGS: Final = (12, 2004)
_WITH_CHARSET: Final = BLOBS | {Tp.STRING, Tp.VARCHAR, Tp.ENUM, Tp.SET, Tp.TIMESTAMP, Tp.DURATION, Tp.NEWDECIMAL}


def changes_of(ddl: Ddl) -> list[Document]:
    """Return `tableChanges`. Empty for a DDL of a database, for TRUNCATE TABLE, and if the table is not known."""
    if not ddl.table or ddl.type_code == ActionType.TRUNCATE_TABLE:
        return []
    if ddl.type_code in _DROPS:
        return [{"type": "DROP", "id": _id(ddl.schema, ddl.table), "table": None}]
    if ddl.after is None:
        return []
    after = _id(ddl.after.schema, ddl.after.name)
    if ddl.type_code in _RENAMES and ddl.before is not None:
        after = f"{_id(ddl.before.schema, ddl.before.name)},{after}"
    kind = "CREATE" if ddl.type_code in _CREATES else "ALTER"
    return [{"type": kind, "id": after, "table": _table(ddl.after)}]


def _id(schema: str, table: str) -> str:
    return f'"{schema}"."{table}"'


def _table(table: Table) -> Document:
    info = table.info
    primary = info.primary_index()
    return {
        "defaultCharsetName": info.charset,
        "primaryKeyColumnNames": [] if primary is None else [column.name for column in info.index_columns(primary)],
        "columns": [_column(column) for column in info.public_columns if not column.hidden],
        "comment": None,
    }


def _column(column: ColumnInfo) -> Document:
    """Describe a column. Comments are left out, as in Debezium's default configuration."""
    kind = column.type
    expression, name = _names(kind)
    has_charset = kind.charset not in ("", "binary") and kind.tp in _WITH_CHARSET
    updates = bool(kind.flag & Flag.ON_UPDATE_NOW) and kind.tp is Tp.TIMESTAMP
    generated = bool(kind.flag & Flag.AUTO_INCREMENT) or updates
    return {
        "name": column.name,
        "jdbcType": _jdbc_type(kind),
        "nativeType": None,
        "comment": None,
        "defaultValueExpression": _default(column),
        "enumValues": [f"'{name}'" for name in kind.elems] or None,
        "typeName": name,
        "typeExpression": expression,
        "charsetName": kind.charset if has_charset else None,
        "length": _length(kind),
        "scale": kind.decimal if kind.tp in (Tp.NEWDECIMAL, Tp.FLOAT, Tp.DOUBLE) and kind.decimal >= 0 else None,
        "position": column.offset + 1,
        "optional": not kind.is_not_null,
        "autoIncremented": generated,
        "generated": generated,
    }


def _jdbc_type(kind: FieldType) -> int:
    if kind.is_string:
        text, binary = _STRINGS.get(kind.tp, _OTHER_STRINGS)
        return binary if kind.is_binary else text
    return _JDBC[kind.tp]


def _default(column: ColumnInfo) -> str | None:
    default = column.default
    if column.type.tp is Tp.BIT and column.default_bit:
        width = max(column.type.flen, 1)
        return f"{int.from_bytes(column.default_bit, 'big'):0{width}b}"
    if isinstance(default, str) and default.upper().startswith("CURRENT_TIMESTAMP"):
        return "1970-01-01 00:00:00"
    return None if default is None else str(default)


def _length(kind: FieldType) -> int | None:
    default, _ = default_length(kind)
    match kind.tp:
        case Tp.TIMESTAMP | Tp.DATETIME | Tp.DURATION:
            found = kind.decimal or -1
        case Tp.SET:
            found = 2 * len(kind.elems) - 1
        case Tp.ENUM:
            found = 1
        case Tp.YEAR | Tp.NEWDECIMAL:
            found = kind.flen
        case Tp.TINY | Tp.SHORT | Tp.INT24 | Tp.LONG:
            shorter = kind.is_unsigned and not (kind.tp is Tp.TINY and kind.flag & Flag.ZEROFILL)
            found = -1 if kind.flen == default - shorter else kind.flen
        case Tp.BIT | Tp.VARCHAR | Tp.STRING | Tp.VAR_STRING | Tp.LONGLONG | Tp.FLOAT | Tp.DOUBLE:
            found = -1 if kind.flen == default else kind.flen
        case _:
            found = -1
    return found if found >= 0 else None


def _names(kind: FieldType) -> tuple[str, str]:
    """Return (typeExpression, typeName)."""
    name = kind.mysql_name.upper()
    if kind.tp in NEVER_UNSIGNED:
        return name, name
    suffix = " UNSIGNED ZEROFILL" if kind.flag & Flag.ZEROFILL else " UNSIGNED" if kind.is_unsigned else ""
    size = f"({max(kind.flen, 22)},{kind.decimal})" if kind.tp is Tp.DOUBLE and kind.decimal > 0 else ""
    return name + size + suffix, name + suffix


def key_schema() -> Document:
    return {
        "type": "struct",
        "name": "io.debezium.connector.mysql.SchemaChangeKey",
        "optional": False,
        "version": 1,
        "fields": _fields(databaseName="string"),
    }


def _fields(**types: str) -> list[Document]:
    """Return fields with the members of TiCDC's order."""
    return [{name: of[name] for name in ("field", "optional", "type")} for of in fields_of(**types)]


def _list(name: str, items: Document, *, optional: bool = False) -> Document:
    return {"field": name, "optional": optional, "type": "array", "items": items}


def _struct(name: str, *fields: Document) -> Document:
    return {
        "name": f"io.debezium.connector.schema.{name}",
        "optional": False,
        "type": "struct",
        "version": 1,
        "fields": [*fields],
    }


def value_schema() -> Document:
    text: Document = {"type": "string", "optional": False}
    column = _struct(
        "Column",
        *_fields(name="string", jdbcType="int32", nativeType="int32?", typeName="string", typeExpression="string?"),
        *_fields(charsetName="string?", length="int32?", scale="int32?", position="int32", optional="boolean?"),
        *_fields(autoIncremented="boolean?", generated="boolean?", comment="string?"),
        *_fields(defaultValueExpression="string?"),
        _list("enumValues", text, optional=True),
    )
    table = _struct(
        "Table",
        *_fields(defaultCharsetName="string?"),
        _list("primaryKeyColumnNames", text, optional=True),
        _list("columns", column),
        *_fields(comment="string?"),
    )
    change = _struct("Change", *_fields(type="string", id="string"), table | {"optional": True, "field": "table"})
    return {
        "optional": False,
        "type": "struct",
        "version": 1,
        "name": "io.debezium.connector.mysql.SchemaChangeValue",
        "fields": [
            source_schema(),
            *_fields(ts_ms="int64", databaseName="string?", schemaName="string?", ddl="string?"),
            _list("tableChanges", change),
        ],
    }
