"""Tables and changes from what their Avro schema and records say: the way back that no program needs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from binlog.tidb.json import encode_json, parse_json
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.time import parse_datetime, parse_duration
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.avro.schema import allowed_names
from drainer.protocol.encoder import merged
from drainer.protocol.event import Value
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Column, ColumnFlag, RowChanges, Table
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass
from tests.support.row_changes import make_changes

TOPIC = "a.topic"
_SIMPLE = {
    "FLOAT": FieldType(Tp.FLOAT),
    "DOUBLE": FieldType(Tp.DOUBLE),
    "TEXT": FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin"),
    "BLOB": FieldType(Tp.BLOB),
    "DATE": FieldType(Tp.DATE),
    "DATETIME": FieldType(Tp.DATETIME),
    "TIMESTAMP": FieldType(Tp.TIMESTAMP),
    "TIME": FieldType(Tp.DURATION),
    "YEAR": FieldType(Tp.YEAR),
    "JSON": FieldType(Tp.JSON),
    "BIGINT": FieldType(Tp.LONGLONG),
    "BIGINT UNSIGNED": FieldType(Tp.LONGLONG, Flag.UNSIGNED),
    "TiDBVECTORFloat32": FieldType(Tp.VECTOR),
}


def ready(table: Table, options: ProtocolOptions, **more: Any) -> tuple[AvroEncoder, Callable[[int], str]]:
    """An encoder with ids for the table's schemas, and the schemas by those ids."""
    options = replace(options, **more)
    encoder = AvroEncoder(options)
    numbered = list(enumerate(encoder.required_schemas(TOPIC, table), 1))
    ids = merged({}, [(required, number) for number, required in numbered])
    return encoder.with_ids(ids), {number: required.schema for number, required in numbered}.__getitem__


def options_of(schema: dict[str, Any], **more: Any) -> ProtocolOptions:
    """Those under which TiCDC makes such a schema."""
    names = {field["name"] for field in schema["fields"]}
    types = [_branch(field)[1] for field in schema["fields"]]
    found: dict[str, Any] = {"enable_tidb_extension": "_tidb_op" in names}
    for kind in types:
        name, as_text = _parameters(kind).get("tidb_type"), kind.get("type") == "string"
        if name == "DECIMAL" and as_text:
            found["avro_decimal_handling_mode"] = "string"
        if name == "BIGINT UNSIGNED" and as_text:
            found["avro_bigint_unsigned_handling_mode"] = "string"
    return ProtocolOptions("avro", namespace=schema["namespace"].partition(".")[0], **found | more)


def table_of_schema(schema: dict[str, Any], *, is_key: bool, values: dict[str, Value] | None = None) -> Table:
    """`values`: of a row, which say how many digits seconds have. A key's columns are all of its table."""
    columns = []
    for field in schema["fields"]:
        union, kind = _branch(field)
        if "tidb_type" not in _parameters(kind):
            continue
        type_ = _field_type(kind, (values or {}).get(field["name"]))
        flags = ColumnFlag.NULLABLE if union else ColumnFlag(0)
        if is_key:
            flags |= ColumnFlag.HANDLE_KEY
        if not union:
            type_ = replace(type_, flag=type_.flag | Flag.NOT_NULL)
        place = len(columns)
        info = _with_default(ColumnInfo(id=place + 1, name=field["name"], offset=place, type=type_), field)
        column_type = ColumnType(type_, TypeClass.TEXT) if type_.tp is Tp.VECTOR else ColumnType.of(type_)
        columns.append(Column(field["name"], column_type, flags, info))
    info = TableInfo(id=1, name=schema["name"], columns=tuple(column.info for column in columns))
    return Table(schema["namespace"].partition(".")[2], info, tuple(columns), 1, 1)


def changes_of(table: Table, kind: Kind, image: dict[str, Value], commit_ts: int) -> RowChanges:
    """Of one row. An update's old row is its new one."""
    row = [_decoded_value(column.column_type, image[column.name]) for column in table.columns]
    old = [row] if kind is not Kind.INSERT else None
    new = [row] if kind is not Kind.DELETE else None
    return make_changes(table, kind, old=old, new=new, commit_ts=commit_ts)


def _branch(field: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    kind = field["type"]
    if isinstance(kind, list):
        return True, next(one for one in kind if one != "null")
    return False, kind if isinstance(kind, dict) else {"type": kind}


def _parameters(kind: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = kind.get("connect.parameters", {})
    return found


def _field_type(kind: dict[str, Any], value: Value) -> FieldType:
    parameters = _parameters(kind)
    name = parameters["tidb_type"]
    if name in ("INT", "INT UNSIGNED"):
        flag = Flag.UNSIGNED if name.endswith("UNSIGNED") else 0
        return FieldType(Tp.INT24 if flag and kind["type"] == "int" else Tp.LONG, flag)
    if name == "DECIMAL":
        digits = len(value.partition(".")[2]) if isinstance(value, str) else 0
        return FieldType(Tp.NEWDECIMAL, flen=kind.get("precision", 65), decimal=kind.get("scale", digits))
    if name == "BIT":
        return FieldType(Tp.BIT, flen=int(parameters["length"]))
    if name in ("ENUM", "SET"):
        return FieldType(Tp.ENUM if name == "ENUM" else Tp.SET, elems=allowed_names(parameters["allowed"]))
    found = _SIMPLE[name]
    if name in ("DATETIME", "TIMESTAMP", "TIME") and isinstance(value, str):
        return replace(found, decimal=len(value.partition(".")[2]))
    return found


def _with_default(info: ColumnInfo, field: dict[str, Any]) -> ColumnInfo:
    default = field.get("default")
    if default is None:
        return info
    if info.type.tp is Tp.BIT or info.type.is_binary:
        return replace(info, default_bit=base64.b64decode(default))
    if info.type.is_unsigned and isinstance(default, int) and default < 0:
        default += 1 << 64
    return replace(info, default=str(default))


def _decoded_value(column_type: ColumnType, value: Value) -> DecodedValue:
    type_class, names = column_type.type_class, column_type.kind.elems
    if value is None:
        return None
    if type_class is TypeClass.JSON:
        return bytes(encode_json(parse_json(str(value))))
    if type_class is TypeClass.ENUM:
        return names.index(str(value)) + 1
    if type_class is TypeClass.SET:
        return sum(1 << names.index(one) for one in str(value).split(",")) if value else 0
    if type_class in (TypeClass.DATE, TypeClass.DATETIME):
        return parse_datetime(str(value))
    if type_class is TypeClass.TIME:
        return parse_duration(str(value))
    if type_class is TypeClass.TEXT:
        return str(value).encode()
    return value


def load(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found
