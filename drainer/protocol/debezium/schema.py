"""Kafka Connect schemas of Debezium's messages, as documents."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.time import parse_datetime, parse_duration
from binlog.tidb.types import FieldType, Tp

from drainer.protocol.avro.schema import avro_name
from drainer.protocol.debezium.values import DECIMAL, EPOCH, value_of
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Column, Table
from drainer.row.column_type import ColumnType, TypeClass

# Defaults of columns in a Connect schema.
NO_DEFAULT: Final = object()
_NOW: Final = "CURRENT_TIMESTAMP"


def default_of(column: Column, options: ProtocolOptions) -> object:
    """Return the default. NO_DEFAULT if the column has none, if it is an expression, or if Connect's type cannot
    express it."""
    info, column_type = column.info, column.column_type
    if info.default is None or info.default_is_expr:
        return NO_DEFAULT
    if column_type.type_class is TypeClass.BIT:
        return _shown(column_type, int.from_bytes(info.default_bit, "big"), options) if info.default_bit else NO_DEFAULT
    if not isinstance(info.default, str | int | float):
        return NO_DEFAULT
    try:
        return _default(column_type, str(info.default), options)
    except (ValueError, OverflowError, DecodeError):
        return NO_DEFAULT


def _default(column_type: ColumnType, text: str, options: ProtocolOptions) -> object:
    kind = column_type.kind
    match column_type.type_class:
        case TypeClass.INT:
            number = int(text)
            if kind.tp is Tp.YEAR and number < 100:
                return number + (2000 if number < 70 else 1900)
            return _shown(column_type, number, options)
        case TypeClass.FLOAT | TypeClass.DECIMAL:
            value = float(text)
            return value if isfinite(value) else NO_DEFAULT
        case TypeClass.DATETIME if text.upper().startswith(_NOW):
            if kind.tp is Tp.DATETIME:
                return 0
            return EPOCH.decode() if kind.is_not_null else NO_DEFAULT
        case TypeClass.DATE | TypeClass.DATETIME:
            return _shown(column_type, parse_datetime(text, kind.fsp), options)
        case TypeClass.TIME:
            return parse_duration(text) // 1000
        case _:
            return text


def _shown(column_type: ColumnType, decoded_value: int, options: ProtocolOptions) -> object:
    """Return the default as the value of a row would be written."""
    value = value_of(column_type, options)
    (shown,) = value.fragment(pa.array([decoded_value], column_type.decoded_type)).to_pylist()
    if shown is None:
        return NO_DEFAULT
    found: str = shown.decode()
    if value.is_quoted:
        return found
    return found == "true" if found in ("true", "false") else int(found)


Document = dict[str, object]

_NOT_IN_TOPICS: Final = re.compile(r"[^A-Za-z0-9_.]")
# TiCDC adds nothing to the names of these types, neither in tidb_type (TypeToStr) nor in DDLs.
NEVER_UNSIGNED: Final = frozenset({Tp.YEAR, Tp.BIT, Tp.VARCHAR, Tp.STRING, Tp.NEWDECIMAL})


def schema_name(namespace: str, schema: str, table: str) -> str:
    """Return `<cluster>.<database>.<table>`, limited to the characters that such names may have."""
    return f"{avro_name(namespace)}.{avro_name(schema)}.{_NOT_IN_TOPICS.sub('_', table)}"


def key_schema(table: Table, options: ProtocolOptions) -> Document:
    return {
        "type": "struct",
        "name": f"{schema_name(options.namespace, table.schema, table.name)}.Key",
        "optional": False,
        "fields": [field_schema(table.columns[column_index], options) for column_index in table.handle],
    }


def envelope_schema(table: Table, options: ProtocolOptions) -> Document:
    name = schema_name(options.namespace, table.schema, table.name)
    fields = [field_schema(column, options) for column in table.columns]
    images: list[Document] = [
        {"type": "struct", "optional": True, "name": f"{name}.Value", "field": which, "fields": fields}
        for which in ("before", "after")
    ]
    return _envelope(name, images)


def watermark_schemas(namespace: str) -> tuple[Document, Document]:
    """Return the schemas of key and value."""
    name = f"{avro_name(namespace)}.watermark"
    return {"type": "struct", "name": f"{name}.Key", "optional": False, "fields": []}, _envelope(name, [])


def _envelope(name: str, images: list[Document]) -> Document:
    transaction = fields_of(id="string", total_order="int64", data_collection_order="int64")
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 1,
        "fields": [
            *images,
            source_schema(),
            *fields_of(op="string", ts_ms="int64?"),
            {
                "type": "struct",
                "fields": transaction,
                "optional": True,
                "name": "event.block",
                "version": 1,
                "field": "transaction",
            },
        ],
    }


def fields_of(**types: str) -> list[Document]:
    """Return fields by name and type. A question mark after the type: optional."""
    return [{"type": type_.rstrip("?"), "optional": "?" in type_, "field": name} for name, type_ in types.items()]


def source_schema() -> Document:
    snapshot: Document = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "true,last,false,incremental"},
        "default": "false",
        "field": "snapshot",
    }
    fields = [
        *fields_of(version="string", connector="string", name="string", ts_ms="int64"),
        snapshot,
        *fields_of(db="string", sequence="string?", table="string?", server_id="int64", gtid="string?", file="string"),
        *fields_of(pos="int64", row="int32", thread="int64?", query="string?"),
    ]
    return {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": "io.debezium.connector.mysql.Source",
        "field": "source",
    }


def field_schema(column: Column, options: ProtocolOptions) -> Document:
    """Return a column's schema. With the extension it includes TiDB's type, from which a reader learns what Connect's
    types do not say (binary, unsigned)."""
    kind = column.column_type.kind
    found: Document = {"tidb_type": tidb_type(kind)} if options.enable_tidb_extension else {}
    value = value_of(column.column_type, options)
    found |= {"type": value.type, "optional": not kind.is_not_null}
    if value.semantic:
        found |= {"name": value.semantic, "version": 1}
    parameters = {"scale": "0"} if value.semantic == DECIMAL else _parameters(kind)
    if parameters:
        found["parameters"] = parameters
    found["field"] = column.name
    default = default_of(column, options)
    if default is not NO_DEFAULT:
        found["default"] = default
    return found


def tidb_type(kind: FieldType) -> str:
    unsigned = kind.is_unsigned and kind.tp not in NEVER_UNSIGNED
    return kind.mysql_name + (" unsigned" if unsigned else "")


def _parameters(kind: FieldType) -> dict[str, str]:
    if kind.tp is Tp.ENUM:
        return {"allowed": ",".join(name.replace(",", "\\,") for name in kind.elems)}
    if kind.tp is Tp.SET:
        return {"allowed": ",".join(kind.elems)}
    return {"length": str(kind.flen)} if kind.tp is Tp.BIT and kind.flen > 1 else {}
